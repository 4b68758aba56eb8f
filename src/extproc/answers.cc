#include "extproc/answers.h"

#include <bit>
#include <cstring>

namespace penstock::extproc {

namespace {

constexpr std::string_view kDestination = "x-gateway-destination-endpoint";
constexpr std::string_view kScores = "x-gateway-destination-endpoint-scores";
constexpr std::string_view kNamespace = "envoy.lb";
constexpr size_t kPerEntry = 48;       // tags and lengths around one header, name or score
constexpr size_t kAroundMessage = 64;  // and around all of them
constexpr size_t kKeptArenaBytes = 64 << 10;

// ProcessingResponse's field for the answer to a body or to headers.
uint32_t body_field(Answers::Side side) {
  return side == Answers::Side::kRequest ? 3 : 4;
}
uint32_t headers_field(Answers::Side side) {
  return side == Answers::Side::kRequest ? 1 : 2;
}

}  // namespace

// Writes a message from its end to its beginning, so that every length is known when it is written.
class Answers::BackWriter {
 public:
  BackWriter(Arena& arena, size_t bound) {
    const std::span<char> memory = arena.make_span<char>(bound);
    begin_ = memory.data();
    at_ = end_ = memory.data() + memory.size();
  }
  // Bytes written so far: what field() measures from.
  size_t mark() const { return static_cast<size_t>(end_ - at_); }
  void raw(std::string_view bytes) {
    at_ -= bytes.size();
    if (!bytes.empty()) std::memcpy(at_, bytes.data(), bytes.size());
  }
  void varint(uint64_t value) {
    size_t size = 1;
    for (uint64_t rest = value >> 7U; rest != 0; rest >>= 7U) ++size;
    at_ -= size;
    for (size_t i = 0; i + 1 < size; ++i, value >>= 7U) at_[i] = static_cast<char>((value & 0x7FU) | 0x80U);
    at_[size - 1] = static_cast<char>(value);
  }
  // Length and tag of a field whose content was written since `mark`, plus `more` bytes that follow
  // elsewhere.
  void field(uint32_t number, size_t mark, size_t more = 0) {
    varint(this->mark() - mark + more);
    varint((number << 3U) | 2U);
  }
  void text(uint32_t number, std::string_view value) {
    raw(value);
    varint(value.size());
    varint((number << 3U) | 2U);
  }
  void number(uint32_t field, uint64_t value) {
    varint(value);
    varint(field << 3U);
  }
  void fixed64(uint32_t field, double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    at_ -= 8;
    for (size_t i = 0; i < 8; ++i) at_[i] = static_cast<char>(bits >> (8 * i));
    varint((field << 3U) | 1U);
  }
  std::string_view view() const { return {at_, mark()}; }

 private:
  char* begin_;
  char* at_;
  char* end_;
};

void Answers::clear() {
  arena_.reset(kKeptArenaBytes);
  pieces_.clear();
  ends_.clear();
}

std::span<const std::span<const std::string_view>> Answers::messages() {
  messages_.clear();
  size_t begin = 0;
  for (const uint32_t end : ends_) {
    messages_.push_back(std::span<const std::string_view>(pieces_).subspan(begin, end - begin));
    begin = end;
  }
  return messages_;
}

size_t Answers::bound(const HeaderChanges& headers) {
  size_t bytes = kAroundMessage;
  for (const HeaderField& field : headers.set) bytes += field.name.size() + field.value.size() + kPerEntry;
  for (const std::string_view name : headers.remove) bytes += name.size() + kPerEntry;
  return bytes;
}

size_t Answers::bound(const Choice& choice) {
  size_t bytes = bound(choice.headers) + 2 * (choice.destination.size() + kDestination.size() + kPerEntry) +
                 kScores.size() + kNamespace.size() + 4 * kAroundMessage;
  for (const director::EndpointScore& score : choice.scores) bytes += score.host_port.size() + kPerEntry;
  return bytes;
}

// The fields of a HeaderMutation: set_headers, remove_headers.
void Answers::write(BackWriter& out, const HeaderChanges& headers) {
  for (size_t i = headers.remove.size(); i-- > 0;) out.text(2, headers.remove[i]);
  for (size_t i = headers.set.size(); i-- > 0;) {
    const size_t option = out.mark();
    if (!headers.set[i].value.empty()) out.text(3, headers.set[i].value);
    out.text(1, headers.set[i].name);
    out.field(1, option);
    out.field(1, option);
  }
}

void Answers::write_choice_headers(BackWriter& out, const Choice& choice) {
  const size_t mutation = out.mark();
  write(out, choice.headers);
  const size_t option = out.mark();
  out.text(3, choice.destination);
  out.text(1, kDestination);
  out.field(1, option);
  out.field(1, option);
  out.field(2, mutation);  // CommonResponse.header_mutation
}

// dynamic_metadata: {"envoy.lb": {destination[, scores]}} as a Struct of a Struct.
void Answers::write_metadata(BackWriter& out, const Choice& choice) {
  const size_t outer = out.mark();
  const size_t inner = outer;
  if (!choice.scores.empty()) {
    const size_t entry = out.mark();
    for (size_t i = choice.scores.size(); i-- > 0;) {
      const size_t score = out.mark();
      out.fixed64(2, choice.scores[i].total);  // Value.number_value
      out.field(2, score);
      out.text(1, choice.scores[i].host_port);
      out.field(1, score);
    }
    out.field(5, entry);  // Value.struct_value
    out.field(2, entry);
    out.text(1, kScores);
    out.field(1, entry);
  }
  const size_t entry = out.mark();
  out.text(3, choice.destination);  // Value.string_value
  out.field(2, entry);
  out.text(1, kDestination);
  out.field(1, entry);
  out.field(5, inner);  // Value.struct_value
  out.field(2, inner);
  out.text(1, kNamespace);
  out.field(1, inner);
  out.field(8, outer);
}

void Answers::choice_on_headers(const Choice& choice) {
  BackWriter out(arena_, bound(choice));
  write_metadata(out, choice);
  const size_t response = out.mark();
  out.number(5, 1);  // clear_route_cache
  write_choice_headers(out, choice);
  out.field(1, response);  // HeadersResponse.response
  out.field(1, response);  // ProcessingResponse.request_headers
  one_piece(out.view());
}

void Answers::choice_on_body(const Choice& choice, const Replacement& body) {
  // Metadata and the route's part come behind the body, so its bytes stay where they are.
  BackWriter tail(arena_, bound(choice));
  write_metadata(tail, choice);
  const size_t metadata = tail.mark();
  tail.number(5, 1);
  const size_t after_body = tail.mark() - metadata;
  size_t size = 0;
  for (const std::string_view piece : body.pieces) size += piece.size();
  BackWriter head(arena_, bound(choice));
  if (body.replace) {
    const size_t mutation = head.mark();
    head.field(1, mutation, size);  // BodyMutation.body
    head.field(3, mutation, size);  // CommonResponse.body_mutation
  }
  write_choice_headers(head, choice);
  const size_t more = (body.replace ? size : 0) + after_body;
  head.field(1, 0, more);  // BodyResponse.response
  head.field(body_field(Side::kRequest), 0, more);
  pieces_.push_back(head.view());
  if (body.replace) pieces_.insert(pieces_.end(), body.pieces.begin(), body.pieces.end());
  one_piece(tail.view());
}

void Answers::headers(Side side, const HeaderChanges& changes) {
  BackWriter out(arena_, bound(changes));
  if (!changes.set.empty() || !changes.remove.empty()) {
    write(out, changes);
    out.field(2, 0);  // CommonResponse.header_mutation
    out.field(1, 0);
  }
  out.field(headers_field(side), 0);
  one_piece(out.view());
}

void Answers::body(Side side, const Replacement& body) {
  BackWriter head(arena_, kAroundMessage);
  if (!body.replace) {
    head.field(body_field(side), 0);
    one_piece(head.view());
    return;
  }
  size_t size = 0;
  for (const std::string_view piece : body.pieces) size += piece.size();
  if (size == 0) {
    head.number(2, 1);  // BodyMutation.clear_body
  } else {
    head.field(1, 0, size);
  }
  head.field(3, 0, size);
  head.field(1, 0, size);
  head.field(body_field(side), 0, size);
  pieces_.push_back(head.view());
  if (size != 0) pieces_.insert(pieces_.end(), body.pieces.begin(), body.pieces.end());
  ends_.push_back(static_cast<uint32_t>(pieces_.size()));
}

void Answers::one_streamed(Side side, size_t size, bool end_of_stream,
                           std::span<const std::string_view> body) {
  constexpr std::string_view kEnd("\x10\x01", 2);  // StreamedBodyResponse.end_of_stream
  const size_t after = end_of_stream ? kEnd.size() : 0;
  BackWriter head(arena_, kAroundMessage);
  if (size != 0) head.field(1, 0, size);
  // Every length counts what stands behind the head: the body and the end.
  for (const uint32_t field : {3U, 3U, 1U, body_field(side)}) head.field(field, 0, size + after);
  pieces_.push_back(head.view());
  if (size != 0) pieces_.insert(pieces_.end(), body.begin(), body.end());
  if (end_of_stream) pieces_.push_back(kEnd);
  ends_.push_back(static_cast<uint32_t>(pieces_.size()));
}

size_t Answers::streamed_body(Side side, std::span<const std::string_view> pieces, size_t piece_bytes,
                              bool end_of_stream) {
  size_t left = 0;
  for (const std::string_view piece : pieces) left += piece.size();
  if (left == 0) {
    if (!end_of_stream) return 0;
    one_streamed(side, 0, true, {});
    return 1;
  }
  size_t count = 0;
  size_t next = 0;  // in `pieces`
  std::string_view rest;
  while (left != 0) {
    const size_t size = left < piece_bytes ? left : piece_bytes;
    part_.clear();
    for (size_t need = size; need != 0;) {
      while (rest.empty()) rest = pieces[next++];
      const std::string_view taken = rest.substr(0, need);
      part_.push_back(taken);
      rest.remove_prefix(taken.size());
      need -= taken.size();
    }
    left -= size;
    one_streamed(side, size, end_of_stream && left == 0, part_);
    ++count;
  }
  return count;
}

void Answers::trailers(Side side) {
  one_piece(side == Side::kRequest ? std::string_view("\x2a\x00", 2) : std::string_view("\x32\x00", 2));
}

void Answers::add_metadata(std::span<const Number> numbers) {
  if (numbers.empty() || ends_.empty()) return;
  size_t bytes = kAroundMessage;
  for (const Number& number : numbers) bytes += number.ns.size() + number.name.size() + 2 * kPerEntry;
  BackWriter out(arena_, bytes);
  for (size_t i = numbers.size(); i-- > 0;) {
    // Each namespace once, where it comes first: of equal keys of a map only the last would count.
    bool first = true;
    for (size_t j = 0; j < i; ++j) first = first && numbers[j].ns != numbers[i].ns;
    if (!first) continue;
    const size_t entry = out.mark();
    for (size_t j = numbers.size(); j-- > i;) {
      if (numbers[j].ns != numbers[i].ns) continue;
      const size_t field = out.mark();
      out.fixed64(2, numbers[j].value);  // Value.number_value
      out.field(2, field);
      out.text(1, numbers[j].name);
      out.field(1, field);
    }
    out.field(5, entry);  // Value.struct_value
    out.field(2, entry);
    out.text(1, numbers[i].ns);
    out.field(1, entry);
  }
  out.field(8, 0);  // ProcessingResponse.dynamic_metadata: fields may come in any order
  pieces_.push_back(out.view());
  ends_.back() = static_cast<uint32_t>(pieces_.size());
}

void Answers::immediate(const Immediate& response) {
  BackWriter out(arena_, bound(HeaderChanges{response.headers, {}}) + response.body.size() + kAroundMessage);
  if (!response.body.empty()) out.text(3, response.body);
  if (!response.headers.empty()) {
    const size_t mutation = out.mark();
    write(out, {response.headers, {}});
    out.field(2, mutation);
  }
  const size_t status = out.mark();
  out.number(1, static_cast<uint64_t>(response.status));
  out.field(1, status);
  out.field(7, 0);
  one_piece(out.view());
}

}  // namespace penstock::extproc
