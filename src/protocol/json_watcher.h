#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::protocol {

// Follows JSON that comes in pieces of any size and reports a few members of it: "model" string literals,
// "usage" objects (and "meta_info" ones), the "id" where it is wanted, and the presence of "error", at the
// top of a document or inside its "response" or "message" object. Everything else is only skipped: strings
// and brackets are counted, the grammar is not checked. What makes no sense is ignored until reset().
//
// States and what moves them (level: 0 outside, 1 in the document's object, 2 in response/message):
//   kIdle     '{' -> kMember at level 1; '"' -> kText; all else stays, so the objects of an array at the top
//             (vLLM's completions/render) are documents of their own
//   kMember   '"' -> kKey; '}' -> one level up; ',' and blanks stay; else -> kLost
//   kKey      closing quote -> kColon
//   kColon    ':' -> kValue; else -> kLost
//   kValue    '"' -> kModel, kId or kText; '{' -> level 2, kCapture or kSkip; '[' -> kSkip; else -> kScalar
//   kScalar   ',' '}' or blank -> kMember
//   kText, kModel, kId   closing quote -> kMember (kIdle at level 0)
//   kSkip, kCapture closing bracket of the value -> kMember
class JsonWatcher {
 public:
  class Events {
   public:
    // A model literal begins at `quote`. Its end or give-up follows, maybe in a later piece.
    virtual void model_begins(const char* quote) = 0;
    // It ended; `after` stands behind the closing quote; `content` is what is between the quotes.
    virtual void model_ends(const char* after, std::string_view content) = 0;
    // It is longer than wanted, or broken.
    virtual void model_given_up() = 0;
    // A whole "usage" or "meta_info" object.
    virtual void usage(std::string_view object, bool is_meta_info) = 0;
    virtual void error_member() = 0;
    // The content of an "id", as it is written.
    virtual void id(std::string_view content) = 0;

   protected:
    ~Events() = default;
  };

  explicit JsonWatcher(Events& events) : events_(events) {}

  // For another answer. What was begun is given up. Model literals whose content is longer than
  // `max_model_bytes` are given up; 0: none are reported. Objects longer than `max_usage_bytes` are not
  // reported.
  // Longer ids than `max_id_bytes` are not reported; 0: none are.
  void start(size_t max_model_bytes, size_t max_usage_bytes, size_t max_id_bytes = 0) {
    max_model_bytes_ = max_model_bytes;
    max_usage_bytes_ = max_usage_bytes;
    max_id_bytes_ = max_id_bytes;
    reset();
  }

  void feed(const char* p, const char* end);
  // A line ended, which is a blank to JSON: a number or literal ends, an open string is a broken document.
  void line_end();
  // A new document begins.
  void reset();
  // Within a document.
  bool inside() const { return state_ != State::kIdle && state_ != State::kLost; }
  // Nothing is understood until reset().
  bool lost() const { return state_ == State::kLost; }
  // Content of the unfinished model literal so far. REQUIRES: between model_begins and its end.
  std::string_view model_so_far() const { return capture_; }
  void give_up_model();
  size_t max_usage_bytes() const { return max_usage_bytes_; }
  bool in_model() const { return state_ == State::kModel; }
  // No more ids are wanted of this answer.
  void seen_id() { max_id_bytes_ = 0; }
  bool wants_id() const { return max_id_bytes_ != 0; }

 private:
  enum class State : uint8_t {
    kIdle,
    kMember,
    kKey,
    kColon,
    kValue,
    kScalar,
    kText,
    kModel,
    kId,
    kSkip,
    kCapture,
    kLost
  };
  enum class Member : uint8_t { kOther, kModel, kUsage, kMetaInfo, kNested, kError, kId };

  const char* begin_value(const char* p);
  const char* read_string(const char* p, const char* end);
  const char* skip_value(const char* p, const char* end);
  void keep_string(std::string_view part);
  void end_string(const char* after);
  void classify_key();
  void after_value() { state_ = level_ == 0 ? State::kIdle : State::kMember; }

  Events& events_;
  size_t max_model_bytes_ = 0;
  size_t max_usage_bytes_ = 0;
  size_t max_id_bytes_ = 0;
  State state_ = State::kIdle;
  Member member_ = Member::kOther;
  int level_ = 0;
  uint32_t skip_depth_ = 0;
  bool in_string_ = false;  // within kSkip and kCapture
  bool escaped_ = false;    // the last byte was a backslash that is not itself escaped
  bool key_has_escape_ = false;
  std::string capture_;  // key, content of model or id, or usage object so far
};

}  // namespace penstock::protocol
