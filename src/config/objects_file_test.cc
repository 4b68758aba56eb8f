#include "config/objects_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> names(std::string_view text) {
  const auto objects = decode_objects(text, "f");
  if (!objects.ok()) return {objects.error().message};
  std::vector<std::string> out;
  for (const ApiObject& o : *objects)
    out.push_back(o.group + "|" + o.version + "|" + o.kind + "|" + o.ns + "/" + o.name);
  return out;
}

TEST(ObjectsFile, DocumentsAndListsGiveTheirObjects) {
  EXPECT_THAT(names("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n"
                    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b, namespace: n}\n"),
              ElementsAre("|v1|Pod|default/a", "apps|v1|Deployment|n/b"));
  EXPECT_THAT(names(R"({"apiVersion":"v1","kind":"List","items":[
                        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}]})"),
              ElementsAre("|v1|Pod|default/a"));
  EXPECT_THAT(names(R"({"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}}]})"),
              ElementsAre("|v1|Pod|default/a"))
      << "as the API answers";
  EXPECT_THAT(names("{apiVersion: v1, kind: PodList, items: []}"), IsEmpty());
  EXPECT_THAT(names(""), IsEmpty());
}

TEST(ObjectsFile, ErrorsNameObjectAndLine) {
  EXPECT_THAT(names("kind: Pod\nmetadata: {name: a}\n"), ElementsAre("f: apiVersion is missing (line 1)"));
  EXPECT_THAT(names("apiVersion: v1\nkind: Pod\n"), ElementsAre("f: metadata.name is missing (line 1)"));
  EXPECT_THAT(names("{apiVersion: v1, kind: List, items: [{metadata: {name: a}}]}"),
              ElementsAre(HasSubstr("f: items[0]: kind is missing")));
  EXPECT_THAT(names("- a\n"), ElementsAre(HasSubstr("expected object, got list")));
  EXPECT_THAT(names("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n"
                    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"),
              ElementsAre("f: Pod default/a comes twice (line 5)"));
}

}  // namespace
}  // namespace penstock::config
