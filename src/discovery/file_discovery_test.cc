#include "discovery/file_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/temporary_folder.h"

namespace penstock::discovery {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Recorder final : public EndpointSink {
 public:
  void endpoints(std::string_view, const std::vector<DiscoveredEndpoint>& all) override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    ids_.clear();
    for (const auto& e : all) ids_.push_back(e.ns + "/" + e.name);
    changed_.notify_all();
  }
  bool wait_for(const std::vector<std::string>& ids) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), [&] { return ids_ == ids; });
  }
  int calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> ids_;
  int calls_ = 0;
};

class FileDiscoveryTest : public ::testing::Test {
 protected:
  void write(std::string_view text) const { folder_.write("endpoints.yaml", text); }
  static std::string entries(std::initializer_list<const char*> names) {
    std::string out = "endpoints:\n";
    for (const char* name : names)
      out += std::string("- {name: ") + name + ", address: 10.0.0.1, port: \"8000\"}\n";
    return out;
  }
  FileDiscoveryOptions options(bool watch = true) const {
    return {.path = path_, .watch = watch, .poll_interval = milliseconds(20), .settle = milliseconds(5)};
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("endpoints.yaml");
  Recorder sink_;
};

TEST_F(FileDiscoveryTest, ReadsTheReferencesExample) {
  write(
      "endpoints:\n- {name: ep1, namespace: ns1, address: 10.0.0.1, port: \"8000\"}\n"
      "- {name: ep2, address: 10.0.0.2, port: \"8000\"}\n");
  FileDiscovery discovery(options(false), sink_);
  ASSERT_TRUE(discovery.start().ok());
  EXPECT_TRUE(sink_.wait_for({"ns1/ep1", "default/ep2"}));
  EXPECT_EQ(discovery.state_json(),
            "{\"endpoints\":[\"default/ep2\",\"ns1/ep1\"],\"totalEndpoints\":2,\"maxEndpoints\":100}");
}

TEST_F(FileDiscoveryTest, AFirstLoadThatFailsIsTheCallersError) {
  FileDiscovery missing(options(false), sink_);
  EXPECT_THAT(missing.start().error().message, HasSubstr("file-discovery: initial load failed"));
  write("endpoints:\n- {name: a, address: nowhere at all}\n");
  FileDiscovery bad(options(false), sink_);
  EXPECT_THAT(bad.start().error().message, HasSubstr("nowhere at all"));
}

TEST_F(FileDiscoveryTest, LabelsSayWhereTheMetricsOfAnotherClusterAre) {
  struct Hosts final : EndpointSink {
    void endpoints(std::string_view, const std::vector<DiscoveredEndpoint>& all) override {
      for (const auto& e : all) hosts.push_back(e.metrics_host);
    }
    std::vector<std::string> hosts;
  };
  const auto hosts = [&](bool labels) {
    FileDiscoveryOptions of = options(false);
    of.metrics_labels = labels;
    Hosts sink;
    FileDiscovery discovery(of, sink);
    const Status started = discovery.start();
    return started.ok() ? sink.hosts : std::vector<std::string>{started.error().message};
  };
  write(
      "endpoints:\n"
      "- {name: a, address: gw.a.example, port: \"443\"}\n"
      "- {name: b, address: gw.b.example, port: \"443\", labels: {metricsAddress: epp.b.example}}\n"
      "- {name: c, address: 10.0.0.3, port: \"443\", labels: {metricsAddress: \"fd00::3\", metricsPort: "
      "\"9090\"}}\n"
      "- {name: d, address: 10.0.0.4, port: \"443\", labels: {metricsPort: \"9090\"}}\n");
  EXPECT_THAT(hosts(true), ElementsAre("", "epp.b.example:443", "[fd00::3]:9090", ""));
  EXPECT_THAT(hosts(false), ElementsAre("", "", "", "")) << "file-discovery's labels are labels";
  write(
      "endpoints:\n- {name: a, address: x.example, port: \"1\", labels: {metricsAddress: y, metricsPort: "
      "\"0\"}}\n");
  EXPECT_THAT(hosts(true),
              ElementsAre(HasSubstr("endpoint \"a\": label metricsPort: invalid value \"0\" (line 2)")));
}

TEST_F(FileDiscoveryTest, FollowsWritesInPlaceAndRenames) {
  write(entries({"a"}));
  FileDiscovery discovery(options(), sink_);
  ASSERT_TRUE(discovery.start().ok());
  ASSERT_TRUE(sink_.wait_for({"default/a"}));
  write(entries({"a", "b"}));
  ASSERT_TRUE(sink_.wait_for({"default/a", "default/b"}));
  for (const char* name : {"c", "d", "e"}) {
    std::ofstream(path_ + ".new") << entries({name});
    ASSERT_EQ(std::rename((path_ + ".new").c_str(), path_.c_str()), 0);
    ASSERT_TRUE(sink_.wait_for({std::string("default/") + name}));
  }
  std::filesystem::remove(path_);
  write(entries({"f"}));
  EXPECT_TRUE(sink_.wait_for({"default/f"}));
}

TEST_F(FileDiscoveryTest, FollowsALinkThatIsSwapped) {
  std::filesystem::create_directory(folder_.file("v1"));
  std::filesystem::create_directory(folder_.file("v2"));
  folder_.write("v1/endpoints.yaml", entries({"a"}));
  folder_.write("v2/endpoints.yaml", entries({"b"}));
  std::filesystem::create_directory_symlink("v1", folder_.file("..data"));
  std::filesystem::create_symlink("..data/endpoints.yaml", path_);
  FileDiscovery discovery(options(), sink_);
  ASSERT_TRUE(discovery.start().ok());
  std::filesystem::create_directory_symlink("v2", folder_.file("..data_tmp"));
  ASSERT_EQ(std::rename((folder_.file("..data_tmp")).c_str(), (folder_.file("..data")).c_str()), 0);
  EXPECT_TRUE(sink_.wait_for({"default/b"}));
}

TEST_F(FileDiscoveryTest, ABadFileLeavesTheLastGoodEndpoints) {
  write(entries({"a"}));
  FileDiscovery discovery(options(false), sink_);
  ASSERT_TRUE(discovery.start().ok());
  write(entries({"a", "b"}) + "- {name: c, address: 10.0.0.3, port: \"99999\"}\n");
  const Status bad = discovery.reload();
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("line 4"));
  write("");
  EXPECT_THAT(discovery.reload().error().message, HasSubstr("the file is empty"));
  write("endpoint: [{name: a, address: 10.0.0.1}]\n");
  EXPECT_THAT(discovery.reload().error().message, HasSubstr("unknown field \"endpoint\""));
  write("endpoints:\n");
  EXPECT_FALSE(discovery.reload().ok());
  std::filesystem::remove(path_);
  EXPECT_FALSE(discovery.reload().ok());
  EXPECT_FALSE(discovery.reload().ok());
  EXPECT_EQ(sink_.calls(), 1);
  EXPECT_EQ(discovery.stats().failures, 5U) << "the same failure counts once";
  write("endpoints: []\n");
  EXPECT_TRUE(discovery.reload().ok());
  EXPECT_TRUE(sink_.wait_for({}));
}

// HOT-03.
TEST_F(FileDiscoveryTest, UnchangedContentIsNoChange) {
  write(entries({"a"}));
  FileDiscovery discovery(options(false), sink_);
  ASSERT_TRUE(discovery.start().ok());
  for (int i = 0; i < 10; ++i) {
    write(entries({"a"}));
    ASSERT_TRUE(discovery.reload().ok());
  }
  EXPECT_EQ(sink_.calls(), 1);
}

TEST_F(FileDiscoveryTest, AFileWrittenInPiecesIsReadWhenItIsComplete) {
  write(entries({"a"}));
  FileDiscovery discovery(options(), sink_);
  ASSERT_TRUE(discovery.start().ok());
  const std::string text = entries({"x", "y"});
  std::ofstream out(path_, std::ios::trunc);
  for (const char c : text) out << c << std::flush;
  out.close();
  EXPECT_TRUE(sink_.wait_for({"default/x", "default/y"}));
}

TEST_F(FileDiscoveryTest, PutsEndpointsIntoAPool) {
  write(
      "endpoints:\n- {name: a, address: \"fd00::1\", port: 8000, labels: {app: x}}\n"
      "- {url: \"https://engine.example.com:8443\", name: b, labels: {app: y}}\n");
  ManualClock clock;
  SlotAllocator slots;
  Pool pool({.name = "p", .selector = {{"app", "x"}}}, slots, clock);
  Pool all({.name = "q"}, slots, clock);
  PoolSink sink({&pool, &all});
  FileDiscovery discovery(options(false), sink);
  ASSERT_TRUE(discovery.start().ok());
  ASSERT_EQ(pool.snapshot()->endpoints.size(), 1U);
  EXPECT_EQ(pool.snapshot()->endpoints[0]->host_port, "[fd00::1]:8000");
  ASSERT_EQ(all.snapshot()->endpoints.size(), 2U);
  EXPECT_TRUE(all.snapshot()->endpoints[1]->tls);
}

}  // namespace
}  // namespace penstock::discovery
