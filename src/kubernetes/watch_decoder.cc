#include "kubernetes/watch_decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"

namespace penstock::kubernetes {

namespace {
// A buffer that one large line has left behind goes back at the next occasion.
constexpr size_t kKeptBytes = 256 * 1024;
}  // namespace

void WatchDecoder::feed(std::string_view bytes) {
  if (!failure_.ok()) return;
  if (taken_ > 0) {
    buffer_.erase(0, taken_);
    searched_ -= taken_;
    taken_ = 0;
    if (buffer_.capacity() > kKeptBytes && buffer_.size() + bytes.size() < kKeptBytes / 4) {
      buffer_.shrink_to_fit();
      document_.shrink();
    }
  }
  buffer_.append(bytes);
  // What is read ahead of a line lies in the buffer's own memory.
  if (buffer_.capacity() - buffer_.size() < JsonDocument::kPaddingBytes)
    buffer_.reserve(std::max(buffer_.size() + JsonDocument::kPaddingBytes, buffer_.capacity() * 2));
}

std::optional<std::string_view> WatchDecoder::next_line() {
  for (;;) {
    const size_t end = buffer_.find('\n', searched_);
    if (end == std::string::npos) {
      searched_ = buffer_.size();
      if (buffer_.size() - taken_ > max_line_bytes_)
        fail(fmt::format("an event is longer than {} bytes", max_line_bytes_));
      return std::nullopt;
    }
    const std::string_view line = trim(std::string_view(buffer_).substr(taken_, end - taken_));
    taken_ = searched_ = end + 1;
    if (line.size() > max_line_bytes_) {
      fail(fmt::format("an event is longer than {} bytes", max_line_bytes_));
      return std::nullopt;
    }
    if (!line.empty()) return line;
  }
}

std::nullopt_t WatchDecoder::fail(std::string message) {
  failure_ = Failure();
  failure_.reason = Reason::kMalformed;
  failure_.message = std::move(message);
  return std::nullopt;
}

std::optional<WatchEvent> WatchDecoder::next() {
  while (failure_.ok()) {
    const std::optional<std::string_view> line = next_line();
    if (!line) return std::nullopt;
    const Result<Json> json = document_.parse(*line, true);
    if (!json.ok()) return fail("an event is no JSON: " + json.error().message);
    const Json object = (*json)["object"];
    const std::string_view type = (*json)["type"].text();
    if (type == "ERROR") {
      failure_ = failure_of(object, 0);
      return std::nullopt;
    }
    WatchEvent event;
    if (type == "ADDED") {
      event.type = WatchEvent::Type::kAdded;
    } else if (type == "MODIFIED") {
      event.type = WatchEvent::Type::kModified;
    } else if (type == "DELETED") {
      event.type = WatchEvent::Type::kDeleted;
    } else if (type == "BOOKMARK") {
      event.type = WatchEvent::Type::kBookmark;
    } else if (type.empty()) {
      return fail("an event has no type");
    } else {
      continue;
    }
    const Json metadata = object["metadata"];
    if (!metadata.is_object()) return fail(fmt::format("{} event without an object", type));
    event.object = object;
    event.resource_version = metadata["resourceVersion"].text();
    event.initial_events_end = event.type == WatchEvent::Type::kBookmark &&
                               metadata["annotations"]["k8s.io/initial-events-end"].text() == "true";
    return event;
  }
  return std::nullopt;
}

bool WatchDecoder::complete() const {
  return trim(std::string_view(buffer_).substr(taken_)).empty();
}

}  // namespace penstock::kubernetes
