#pragma once

#include <string_view>

#include "protocol/response_reader.h"

namespace penstock::protocol {

// Reads a "usage" object with the names of OpenAI, Anthropic and vLLM, or SGLang's "meta_info" object. In a
// stream a meta_info counts only once its finish_reason is set. Numbers may be written as strings; other
// types count 0. False: nothing in it, or not readable.
bool read_usage(std::string_view object, bool is_meta_info, bool in_stream, Usage& out);

// Puts `block` on top of what is known: non-zero counts and a present cached count replace; the total is the
// block's where it is complete, else prompt + completion.
void merge_usage(Usage& known, const Usage& block);

}  // namespace penstock::protocol
