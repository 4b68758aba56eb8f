// First byte: kind of answer and API; second: seed of the piece lengths. Rest: the answer.

#include "protocol/response_reader.h"

#include <algorithm>

#include "base/random.h"
#include "protocol/parser_fuzzing.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kServed = "tiny";
constexpr std::string_view kClient = "an \"alias\"";

std::string read(std::string_view text, const ResponseReader::Options& options, std::string_view type,
                 uint64_t seed) {
  ResponseReader reader(options);
  reader.begin(200, type, "");
  Random random(seed);
  std::string out;
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t size = seed == 0 ? text.size() : std::min<size_t>(text.size(), 1 + random.below(40));
    const ExactCopy piece(text.substr(0, size));
    text.remove_prefix(size);
    pieces.clear();
    reader.feed(piece.body().view(), pieces);
    for (const std::string_view part : pieces) out += part;
  }
  pieces.clear();
  reader.finish(pieces);
  for (const std::string_view part : pieces) out += part;
  return out;
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock::protocol;
  using penstock::ApiKind;
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::string_view type = data[0] & 1U ? "text/event-stream" : "application/json";
  const auto api = static_cast<ApiKind>((data[0] >> 1U) % 11U);
  const uint64_t seed = data[1] + 1;

  const ResponseReader::Options observing{.api = api, .max_id_bytes = 32};
  require(read(text, observing, type, seed) == text);

  const ResponseReader::Options restoring{
      .api = api, .served_model = kServed, .client_model = kClient, .max_id_bytes = 32};
  const std::string restored = read(text, restoring, type, seed);
  require(restored == read(text, restoring, type, 0));
  if (text.find('\\') == std::string_view::npos) {
    const ResponseReader::Options back{.api = api, .served_model = kClient, .client_model = kServed};
    require(read(restored, back, type, seed) == text);
  }
  return 0;
}
