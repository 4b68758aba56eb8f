#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <malloc.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/source_path_testing.h"
#include "kubernetes/pod.h"
#include "kubernetes/store.h"
#include "kubernetes/watch_decoder.h"

namespace penstock::kubernetes {
namespace {

constexpr int kPods = 5000;

// A recorded pod with what others of a real cluster have more of, as one line: about 8 KB.
std::string pod_line() {
  std::ifstream file(source_path("tests/vectors/kubernetes/list-pods-ready.http"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  JsonDocument document;
  const auto list = document.parse(std::string_view(text).substr(text.find("\n{")));
  std::string pod;
  if (list.ok()) (*list)["items"].for_each_item([&](Json item) { pod = item.to_string(); });
  std::string environment;
  for (int i = 0; i < 40; ++i)
    environment +=
        fmt::format(R"({{"name":"VARIABLE_{}","value":"with a value of some length, as engines have"}},)", i);
  const size_t env = pod.find("\"env\":[");
  if (env != std::string::npos) pod.insert(env + 7, environment);
  return pod;
}

std::string stream() {
  const std::string pod = pod_line();
  const size_t name = pod.find("\"name\":\"") + 8;
  const size_t end = pod.find('"', name);
  std::string out;
  for (int i = 0; i < kPods; ++i) {
    out += R"({"type":"ADDED","object":)";
    out += pod.substr(0, name) + fmt::format("pod-{}", i) + pod.substr(end);
    out += "}\n";
  }
  return out;
}

// A streaming list of 5,000 pods from its bytes, as they come from the socket, to the store.
void ListPods(benchmark::State& state) {
  const std::string body = stream();
  constexpr size_t kReceive = 64 * 1024;
  size_t held = 0;
  for (auto _ : state) {
    const size_t before = mallinfo2().uordblks;
    Store<PodRecord> store(decode_pod, nullptr);
    auto decoder = std::make_unique<WatchDecoder>(8 << 20);
    store.begin_replace();
    for (size_t at = 0; at < body.size(); at += kReceive) {
      decoder->feed(std::string_view(body).substr(at, kReceive));
      while (const auto event = decoder->next()) {
        const Json metadata = event->object["metadata"];
        if (!store.put(metadata["name"].text(), metadata["resourceVersion"].text(), event->object).ok())
          state.SkipWithError("a pod can't be read");
      }
    }
    store.end_replace();
    if (store.size() != kPods) state.SkipWithError("pods are missing");
    decoder.reset();
    held = mallinfo2().uordblks - before;
  }
  state.counters["bytes_a_pod"] = static_cast<double>(held) / kPods;  // the store's; target 2 KiB
  state.counters["json_bytes_a_pod"] = static_cast<double>(body.size()) / kPods;
}
BENCHMARK(ListPods)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace penstock::kubernetes
