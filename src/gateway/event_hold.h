#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::gateway {

// Holds back the beginning of a line of an event stream until the line has ended, so that an error event can
// follow at any time: what the client got then ends with a whole line, and an SDK reads the error instead of
// half a JSON text with an error behind it. Holds at most kMaxHeld bytes; a longer line passes in parts.
// One per exchange, reused; not thread-safe.
class EventHold {
 public:
  static constexpr size_t kMaxHeld = 64 * 1024;

  void reset();
  // Turns what came into what may be sent now. The views are valid as long as those given, and until the
  // next call.
  void pass(std::vector<std::string_view>& pieces);
  // The stream ended as it should: the same, with what was held.
  void end(std::vector<std::string_view>& pieces);
  // The stream broke off. What must be sent before an error event so that nothing before it spoils it; what
  // was held is dropped.
  std::string_view before_error() const;

 private:
  enum class Sent : uint8_t {
    kWholeEvents,  // nothing, or the end of an event
    kName,         // lines of an event without data: a field name or a comment
    kData,         // data of an event that has not ended
    kPartOfLine,   // a line that was too long to be held
  };

  void note_sent(std::string_view text);

  Sent sent_ = Sent::kWholeEvents;
  std::string held_;
  std::string joined_;
};

}  // namespace penstock::gateway
