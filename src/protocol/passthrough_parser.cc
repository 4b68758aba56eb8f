#include "protocol/passthrough_parser.h"

namespace penstock::protocol {

std::span<const std::string_view> PassthroughParser::path_suffixes() const {
  return {};
}

Result<ParsedBody> PassthroughParser::parse(std::string_view, std::span<const HeaderField>, const PaddedBody&,
                                            Arena&) const {
  return ParsedBody{};
}

}  // namespace penstock::protocol
