#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "director/director.h"
#include "inference/request.h"

namespace penstock::extproc {

// What a header or body answer changes in the headers. `set` replaces what is there, with raw_value.
struct HeaderChanges {
  std::span<const HeaderField> set;
  std::span<const std::string_view> remove;
};
// The answer to the request's headers or, in the buffered modes, to its body, that says where it goes.
struct Choice {
  std::string_view destination;
  std::span<const director::EndpointScore> scores;  // empty: not told
  HeaderChanges headers;                            // besides the destination
};
// A body that replaces the one received; no pieces: stays as it is.
struct Replacement {
  bool replace = false;
  std::span<const std::string_view> pieces;
};
struct Immediate {
  int status = 500;
  std::span<const HeaderField> headers;
  std::string_view body;
};

// The ProcessingResponses to be sent for one received message, as pieces: what frames a body is made here,
// the body itself stays where it is. Reused: clear() starts the next batch. One loop's. Contract:
// external_processor.proto; worked bytes in answers_test.cc.
class Answers {
 public:
  enum class Side : uint8_t { kRequest, kResponse };

  Answers() = default;
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  void clear();
  bool empty() const { return ends_.empty(); }
  size_t size() const { return ends_.size(); }
  // The messages made so far; valid until the next change.
  std::span<const std::span<const std::string_view>> messages();

  void choice_on_headers(const Choice& choice);
  void choice_on_body(const Choice& choice, const Replacement& body);
  // Headers pass, with these changes.
  void headers(Side side, const HeaderChanges& changes = {});
  // BodyResponse of the modes in which each body message has one answer.
  void body(Side side, const Replacement& body = {});
  // BodyResponses with streamed_response, each of at most `piece_bytes`; at least one when `end_of_stream`.
  // Returns how many.
  size_t streamed_body(Side side, std::span<const std::string_view> pieces, size_t piece_bytes,
                       bool end_of_stream);
  void trailers(Side side);
  // dynamic_metadata of the last message, which has none yet: {ns: {name: value}}.
  struct Number {
    std::string_view ns;
    std::string_view name;
    double value = 0;
  };
  void add_metadata(std::span<const Number> numbers);

  void immediate(const Immediate& response);

 private:
  class BackWriter;
  static size_t bound(const HeaderChanges& headers);
  static size_t bound(const Choice& choice);
  static void write(BackWriter& out, const HeaderChanges& headers);
  static void write_choice_headers(BackWriter& out, const Choice& choice);
  static void write_metadata(BackWriter& out, const Choice& choice);
  void one_piece(std::string_view piece) {
    pieces_.push_back(piece);
    ends_.push_back(static_cast<uint32_t>(pieces_.size()));
  }
  void one_streamed(Side side, size_t size, bool end_of_stream, std::span<const std::string_view> body);

  Arena arena_{2048};
  std::vector<std::string_view> pieces_;
  std::vector<uint32_t> ends_;  // of each message in `pieces_`
  std::vector<std::span<const std::string_view>> messages_;
  std::vector<std::string_view> part_;  // scratch
};

}  // namespace penstock::extproc
