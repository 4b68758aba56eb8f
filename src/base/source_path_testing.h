#pragma once

#include <string>
#include <string_view>

namespace penstock {

// For tests and benchmarks: the path of a file of the source tree that they were built from. A file of its
// own says where that lies, so that compilers' caches serve a tree anywhere.
std::string source_path(std::string_view relative);

}  // namespace penstock
