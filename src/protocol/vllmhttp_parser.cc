#include "protocol/vllmhttp_parser.h"

#include "protocol/body_members.h"
#include "protocol/token_ids.h"

namespace penstock::protocol {
namespace {

constexpr std::string_view kSuffixes[] = {"inference/v1/generate"};

struct ModalityHashes {
  std::string_view modality;
  std::span<const std::string_view> hashes;
};
struct Placeholder {
  std::string_view modality;
  uint32_t index = 0;
  uint32_t offset = 0;
  uint32_t length = 0;
};

// `features`: {mm_hashes: {modality: [hash]}, mm_placeholders: {modality: [{offset, length}]}}. What has
// another shape is left out.
class FeatureReader {
 public:
  explicit FeatureReader(Arena& arena) : arena_(arena), hashes_(arena), placeholders_(arena) {}

  void take(JsonCursor& cursor) {
    hashes_.truncate(0);
    placeholders_.truncate(0);
    each_member(cursor, [&](std::string_view key) {
      if (key == "mm_hashes") {
        hashes_.truncate(0);
        each_member(cursor, [&](std::string_view modality) { take_hashes(cursor, modality); });
      } else if (key == "mm_placeholders") {
        placeholders_.truncate(0);
        each_member(cursor, [&](std::string_view modality) { take_placeholders(cursor, modality); });
      } else {
        cursor.skip();
      }
    });
  }

  // Placeholder i of a modality belongs to its hash i; a missing hash is empty.
  std::span<const MultiModalFeature> features() {
    std::span<MultiModalFeature> out = arena_.make_filled<MultiModalFeature>(placeholders_.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const Placeholder& place = placeholders_[i];
      out[i] = {place.modality, {}, place.offset, place.length};
      for (const ModalityHashes& list : hashes_.view()) {
        if (list.modality == place.modality && place.index < list.hashes.size())
          out[i].hash = list.hashes[place.index];
      }
    }
    return out;
  }

 private:
  template <typename Member>
  static void each_member(JsonCursor& cursor, Member&& member) {
    if (cursor.kind() != JsonKind::kObject) {
      cursor.skip();
      return;
    }
    for (bool more = cursor.enter_object(); more; more = cursor.next_member()) {
      member(cursor.key());
      if (cursor.failed()) return;
    }
  }

  void take_hashes(JsonCursor& cursor, std::string_view modality) {
    if (cursor.kind() != JsonKind::kArray) {
      cursor.skip();
      return;
    }
    ArenaList<std::string_view> list(arena_);
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      std::string_view hash;
      take_text_or_null(cursor, hash);
      if (cursor.failed()) return;
      list.push_back(hash);
    }
    hashes_.push_back({modality, list.view()});
  }

  void take_placeholders(JsonCursor& cursor, std::string_view modality) {
    if (cursor.kind() != JsonKind::kArray) {
      cursor.skip();
      return;
    }
    uint32_t index = 0;
    for (bool more = cursor.enter_array(); more; more = cursor.next_element()) {
      Placeholder place{modality, index++, 0, 0};
      each_member(cursor, [&](std::string_view key) {
        if (key == "offset" || key == "length") {
          if (!cursor.u32(key == "offset" ? place.offset : place.length)) cursor.skip();
        } else {
          cursor.skip();
        }
      });
      if (cursor.failed()) return;
      placeholders_.push_back(place);
    }
  }

  Arena& arena_;
  ArenaList<ModalityHashes> hashes_;
  ArenaList<Placeholder> placeholders_;
};

}  // namespace

std::span<const std::string_view> VllmHttpParser::path_suffixes() const {
  return kSuffixes;
}

Result<ParsedBody> VllmHttpParser::parse(std::string_view path, std::span<const HeaderField>,
                                         const PaddedBody& body, Arena& arena) const {
  if (!path_ends_with(normal_path(path), kSuffixes[0]))
    return bad_request("unsupported path: " + std::string(path));

  CommonMembers common(arena);
  FeatureReader features(arena);
  TokenIds tokens;
  ParsedBody out;
  const Status status =
      walk_object(body, arena, common, "error unmarshaling request body: ", [&](JsonCursor& cursor) {
        const std::string_view key = cursor.key();
        if (key == "token_ids") {
          tokens = take_token_ids(cursor, arena);
        } else if (key == "features") {
          features.take(cursor);
        } else if (key == "sampling_params") {
          take_token_limit_of(cursor, "max_tokens", out.max_output_tokens);
        } else {
          cursor.skip();
        }
      });
  if (!status.ok()) return status.error();
  if (!tokens.valid && !tokens.bad_value.empty()) {
    return bad_request("invalid generate request: token_ids[" + std::to_string(tokens.bad_index) +
                       "]: invalid value " + std::string(tokens.bad_value.substr(0, 64)));
  }
  if (tokens.ids.empty()) return bad_request("invalid generate request: must have non-empty token_ids field");
  if (!common.salt_is_text()) return bad_request("invalid generate request: cache_salt must be a string");

  out.api = ApiKind::kVllmGenerate;
  common.fill(out);
  std::span<TokenizedPrompt> prompts = arena.make_filled<TokenizedPrompt>(1);
  prompts[0] = {tokens.ids, features.features()};
  out.prompts = prompts;
  return out;
}

}  // namespace penstock::protocol
