#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kubernetes/failure.h"
#include "kubernetes/json.h"

namespace penstock::kubernetes {

// One event of a watch. The object is valid until the decoder is asked for the next one.
struct WatchEvent {
  enum class Type : uint8_t { kAdded, kModified, kDeleted, kBookmark };
  Type type = Type::kAdded;
  Json object;
  std::string_view resource_version;
  bool initial_events_end = false;  // the bookmark that ends a streaming list's initial state
};

// Cuts a watch's body into its lines, however it arrives, and reads each as an event. Bounds: one line; of
// what has been fed, only the line that is not complete yet is kept. After a failure nothing more comes.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
class WatchDecoder {
 public:
  explicit WatchDecoder(size_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  void feed(std::string_view bytes);
  // The next event that is complete; nothing: feed more, or failure() says why not. An ERROR event is a
  // failure with what its Status says. Unknown types are skipped: later servers may have them.
  std::optional<WatchEvent> next();
  const Failure& failure() const { return failure_; }
  // The body has ended: false when that was inside a line.
  bool complete() const;

 private:
  std::optional<std::string_view> next_line();
  std::nullopt_t fail(std::string message);

  const size_t max_line_bytes_;
  std::string buffer_;
  size_t taken_ = 0;     // of buffer_: lines that were given
  size_t searched_ = 0;  // of buffer_: has no line end behind taken_
  JsonDocument document_;
  Failure failure_;
};

}  // namespace penstock::kubernetes
