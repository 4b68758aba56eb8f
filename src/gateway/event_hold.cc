#include "gateway/event_hold.h"

#include <algorithm>

namespace penstock::gateway {

void EventHold::reset() {
  sent_ = Sent::kWholeEvents;
  held_.clear();
}

void EventHold::pass(std::vector<std::string_view>& pieces) {
  if (pieces.empty()) return;
  if (held_.empty() && pieces.back().ends_with("\n\n")) {
    sent_ = Sent::kWholeEvents;
    return;
  }
  joined_.clear();
  joined_.swap(held_);
  for (const std::string_view piece : pieces) joined_ += piece;
  pieces.clear();
  size_t last_end = joined_.rfind('\n');
  // Lines may end with a lone carriage return too; at the very end it may be half of a longer end.
  if (last_end == std::string::npos && joined_.size() > 1) last_end = joined_.rfind('\r', joined_.size() - 2);
  const size_t whole = last_end == std::string::npos ? 0 : last_end + 1;
  if (joined_.size() - whole > kMaxHeld) {
    sent_ = Sent::kPartOfLine;
    pieces.emplace_back(joined_);
    return;
  }
  held_.assign(joined_, whole);
  if (whole == 0) return;
  joined_.resize(whole);
  note_sent(joined_);
  pieces.emplace_back(joined_);
}

// `text` is whole lines, but for the beginning of the first where kPartOfLine was sent.
void EventHold::note_sent(std::string_view text) {
  std::string_view before = text;
  if (before.ends_with('\n')) before.remove_suffix(1);
  if (before.ends_with('\r')) before.remove_suffix(1);
  const size_t previous = before.find_last_of("\r\n");
  if (previous == std::string_view::npos && sent_ == Sent::kPartOfLine) {
    sent_ = Sent::kData;
    return;
  }
  const std::string_view line = previous == std::string_view::npos ? before : before.substr(previous + 1);
  if (line.empty()) {
    sent_ = Sent::kWholeEvents;
    return;
  }
  const bool is_name = line.starts_with("event:") || line.starts_with("id:") || line.starts_with("retry:") ||
                       line.starts_with(':');
  const size_t event_end = std::max(text.rfind("\n\n") + 1, text.rfind("\n\r\n") + 1);  // 0: none
  const std::string_view event = text.substr(event_end);
  const bool goes_on = event_end == 0 && (sent_ == Sent::kData || sent_ == Sent::kPartOfLine);
  const bool has_data = goes_on || event.find("data:") != std::string_view::npos;
  sent_ = is_name && !has_data ? Sent::kName : Sent::kData;
}

void EventHold::end(std::vector<std::string_view>& pieces) {
  if (held_.empty()) return;
  joined_.clear();
  joined_.swap(held_);
  pieces.insert(pieces.begin(), joined_);
}

std::string_view EventHold::before_error() const {
  switch (sent_) {
    case Sent::kWholeEvents:
    case Sent::kName:
      return {};
    case Sent::kData:
      return "\n";
    case Sent::kPartOfLine:
      return "\n\n";
  }
  return {};
}

}  // namespace penstock::gateway
