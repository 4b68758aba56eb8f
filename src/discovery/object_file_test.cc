#include "discovery/object_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/eventually.h"
#include "base/temporary_folder.h"

namespace penstock::discovery {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ObjectFileTest : public ::testing::Test {
 protected:
  void write(std::string_view text) const { folder_.write("pods.yaml", text); }
  static std::string pods(std::initializer_list<const char*> names) {
    std::string out = "apiVersion: v1\nkind: PodList\nitems:\n";
    for (const char* name : names) out += std::string("- {metadata: {name: ") + name + ", namespace: n}}\n";
    return out;
  }
  ObjectFile::Options options() const {
    ObjectFile::Options out;
    out.path = path_;
    out.kind = {"", "v1", "Pod"};
    out.poll_interval = std::chrono::milliseconds(50);
    out.settle = std::chrono::milliseconds(5);
    return out;
  }
  static std::vector<std::string> names(const ObjectFile& file) {
    std::vector<std::string> out;
    const auto objects = file.objects();
    for (const auto& object : *objects) out.push_back(object->ns + "/" + object->name);
    return out;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.file("pods.yaml");
  std::atomic<int> told_{0};
};

TEST_F(ObjectFileTest, ObjectsOfItsKindAreTakenInOrder) {
  write(pods({"b", "a"}) + "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n");
  ObjectFile file(options(), [&] { ++told_; });
  ASSERT_TRUE(file.load().ok());
  EXPECT_THAT(names(file), ElementsAre("n/a", "n/b"));
  EXPECT_EQ(told_, 0) << "who loads it knows";
}

TEST_F(ObjectFileTest, AChangeIsToldAndABrokenOneLeavesTheLastGoodObjects) {
  write(pods({"a"}));
  ObjectFile file(options(), [&] { ++told_; });
  ASSERT_TRUE(file.load().ok());
  ASSERT_TRUE(file.start().ok());
  write(pods({"a", "c"}));
  EXPECT_TRUE(eventually([&] { return names(file).size() == 2; }));
  EXPECT_TRUE(eventually([&] { return told_ >= 1; }));
  write("kind: Pod\n");
  EXPECT_THAT(file.reload().error().message, HasSubstr("metadata.name is missing"));
  EXPECT_THAT(names(file), ElementsAre("n/a", "n/c"));
  write(pods({}));
  EXPECT_TRUE(eventually([&] { return names(file).empty(); })) << "a list of none is one";
  file.stop();
}

TEST_F(ObjectFileTest, AFileThatIsNotThereIsAnErrorOfTheFirstLoad) {
  ObjectFile file(options(), [&] { ++told_; });
  EXPECT_THAT(file.load().error().message, HasSubstr(path_));
}

}  // namespace
}  // namespace penstock::discovery
