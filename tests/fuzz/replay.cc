// Gives a fuzz target each of its seeds once: where there is no libFuzzer, and so that each build compiles
// the targets. Usage: NAME DIRECTORY. A directory that doesn't exist holds no seeds.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  size_t seeds = 0;
  const std::filesystem::path directory = argv[1];
  if (std::filesystem::exists(directory)) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      if (!file.good() && !file.eof()) {
        std::fprintf(stderr, "can't read %s\n", entry.path().c_str());
        return 1;
      }
      std::fprintf(stderr, "%s\n", entry.path().filename().c_str());
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++seeds;
    }
  }
  std::fprintf(stderr, "%zu seeds\n", seeds);
  return 0;
}
