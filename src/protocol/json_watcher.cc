#include "protocol/json_watcher.h"

#include "protocol/byte_scan.h"
#include "protocol/json_text.h"

namespace penstock::protocol {
namespace {

constexpr size_t kMaxKeyBytes = 48;  // longer than any key of interest, written with escapes

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

}  // namespace

void JsonWatcher::reset() {
  if (state_ == State::kModel) events_.model_given_up();
  state_ = State::kIdle;
  level_ = 0;
  skip_depth_ = 0;
  in_string_ = false;
  escaped_ = false;
}

void JsonWatcher::give_up_model() {
  state_ = State::kText;
  events_.model_given_up();
}

void JsonWatcher::line_end() {
  if (state_ == State::kScalar) after_value();
  const bool in_string = state_ == State::kKey || state_ == State::kText || state_ == State::kModel ||
                         state_ == State::kId ||
                         ((state_ == State::kSkip || state_ == State::kCapture) && in_string_);
  if (!in_string) return;
  reset();
  state_ = State::kLost;
}

void JsonWatcher::feed(const char* p, const char* end) {
  while (p < end) {
    switch (state_) {
      case State::kIdle:
        if (*p == '{') {
          level_ = 1;
          state_ = State::kMember;
        } else if (*p == '"') {
          state_ = State::kText;
        }
        ++p;
        break;
      case State::kMember:
        if (*p == '"') {
          capture_.clear();
          key_has_escape_ = false;
          state_ = State::kKey;
        } else if (*p == '}') {
          --level_;
          after_value();
        } else if (*p != ',' && !is_blank(*p)) {
          state_ = State::kLost;
        }
        ++p;
        break;
      case State::kColon:
        if (*p == ':') {
          state_ = State::kValue;
        } else if (!is_blank(*p)) {
          state_ = State::kLost;
        }
        ++p;
        break;
      case State::kValue:
        p = begin_value(p);
        break;
      case State::kScalar:
        while (p < end && *p != ',' && *p != '}' && !is_blank(*p)) ++p;
        if (p < end) after_value();
        break;
      case State::kKey:
      case State::kText:
      case State::kModel:
      case State::kId:
        p = read_string(p, end);
        break;
      case State::kSkip:
      case State::kCapture:
        p = skip_value(p, end);
        break;
      case State::kLost:
        return;
    }
  }
}

const char* JsonWatcher::begin_value(const char* p) {
  if (is_blank(*p)) return p + 1;
  if (member_ == Member::kError && *p != 'n') events_.error_member();
  switch (*p) {
    case '"':
      if (member_ == Member::kModel && max_model_bytes_ != 0) {
        capture_.clear();
        state_ = State::kModel;
        events_.model_begins(p);
      } else if (member_ == Member::kId && max_id_bytes_ != 0) {
        capture_.clear();
        state_ = State::kId;
      } else {
        state_ = State::kText;
      }
      return p + 1;
    case '{':
      if (member_ == Member::kNested) {
        level_ = 2;
        state_ = State::kMember;
      } else if (member_ == Member::kUsage || member_ == Member::kMetaInfo) {
        capture_.assign(1, '{');
        skip_depth_ = 1;
        state_ = State::kCapture;
      } else {
        skip_depth_ = 1;
        state_ = State::kSkip;
      }
      return p + 1;
    case '[':
      skip_depth_ = 1;
      state_ = State::kSkip;
      return p + 1;
    default:
      state_ = State::kScalar;
      return p;
  }
}

// To the closing quote, or as far as the piece goes.
const char* JsonWatcher::read_string(const char* p, const char* end) {
  while (p < end) {
    const char* stop = escaped_ ? p + 1 : find_quote_or_backslash(p, end);
    const bool at_backslash = !escaped_ && stop < end && *stop == '\\';
    const bool at_quote = !escaped_ && stop < end && !at_backslash;
    if (at_backslash) ++stop;
    keep_string({p, static_cast<size_t>(stop - p)});
    escaped_ = at_backslash;
    key_has_escape_ = key_has_escape_ || at_backslash;
    if (at_quote) {
      end_string(stop + 1);
      return stop + 1;
    }
    p = stop;
  }
  return p;
}

void JsonWatcher::keep_string(std::string_view part) {
  if (state_ == State::kText) return;
  const size_t limit = state_ == State::kKey  ? kMaxKeyBytes
                       : state_ == State::kId ? max_id_bytes_
                                              : max_model_bytes_;
  if (capture_.size() + part.size() <= limit) {
    capture_.append(part);
  } else if (state_ == State::kModel) {
    give_up_model();
  } else if (state_ == State::kId) {
    state_ = State::kText;
  } else {
    capture_.assign(kMaxKeyBytes, '?');  // no key of interest is that long
  }
}

void JsonWatcher::end_string(const char* after) {
  switch (state_) {
    case State::kKey:
      classify_key();
      state_ = State::kColon;
      return;
    case State::kModel:
      after_value();
      events_.model_ends(after, capture_);
      return;
    case State::kId:
      after_value();
      events_.id(capture_);
      return;
    default:
      after_value();
  }
}

void JsonWatcher::classify_key() {
  std::string_view key = capture_;
  std::string unescaped;
  if (key_has_escape_) {
    append_unescaped(unescaped, key);
    key = unescaped;
  }
  member_ = Member::kOther;
  if (key == "model") {
    member_ = Member::kModel;
  } else if (key == "usage") {
    member_ = Member::kUsage;
  } else if (key == "id") {
    member_ = Member::kId;
  } else if (level_ == 1) {
    if (key == "response" || key == "message") {
      member_ = Member::kNested;
    } else if (key == "meta_info") {
      member_ = Member::kMetaInfo;
    } else if (key == "error") {
      member_ = Member::kError;
    }
  }
}

// Over brackets and strings to the end of the value, or as far as the piece goes.
const char* JsonWatcher::skip_value(const char* p, const char* end) {
  const char* from = p;
  bool done = false;
  while (p < end && !done) {
    if (escaped_) {
      escaped_ = false;
      ++p;
    } else if (in_string_) {
      p = find_quote_or_backslash(p, end);
      if (p < end) {
        escaped_ = *p == '\\';
        in_string_ = escaped_;
        ++p;
      }
    } else {
      p = find_structure(p, end);
      if (p < end) {
        if (*p == '"') {
          in_string_ = true;
        } else if (*p == '{' || *p == '[') {
          ++skip_depth_;
        } else {
          done = --skip_depth_ == 0;
        }
        ++p;
      }
    }
  }
  if (state_ == State::kCapture) {
    if (capture_.size() + static_cast<size_t>(p - from) > max_usage_bytes_) {
      state_ = State::kSkip;
    } else {
      capture_.append(from, p);
    }
  }
  if (done) {
    const bool captured = state_ == State::kCapture;
    after_value();
    if (captured) events_.usage(capture_, member_ == Member::kMetaInfo);
  }
  return p;
}

}  // namespace penstock::protocol
