#include "config/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

Node parsed(std::string_view text) {
  auto node = parse_document(text, "test.yaml");
  EXPECT_TRUE(node.ok()) << (node.ok() ? "" : node.error().message);
  return node.ok() ? std::move(node).value() : Node{};
}

std::string error_of(std::string_view text, const ParseLimits& limits = {}) {
  auto node = parse_document(text, "test.yaml", limits);
  return node.ok() ? "no error" : node.error().message;
}

TEST(Node, TypesPlainScalarsAsKubernetesYamlDoes) {
  const Node map = parsed(
      "a: ~\nb: null\nc: 12\nd: 1.5\ne: true\nf: text\ng: \"12\"\nh: 'true'\ni: 0x10\nj: 1e3\n"
      "k: -7\nl: 1_000\nm: !!str 5\nn: yes\no: 1.2.3\np: 10.0.0.1\nq: 2001-01-01\nr:\ns: 017\nt: +3\n");
  const auto kind = [&](std::string_view key) { return map.find(key)->kind; };
  using Kind = Node::Kind;
  EXPECT_EQ(kind("a"), Kind::kNull);
  EXPECT_EQ(kind("b"), Kind::kNull);
  EXPECT_EQ(kind("c"), Kind::kInt);
  EXPECT_EQ(map.find("c")->integer, 12);
  EXPECT_EQ(map.find("c")->number, 12.0);
  EXPECT_EQ(kind("d"), Kind::kDouble);
  EXPECT_EQ(map.find("d")->number, 1.5);
  EXPECT_EQ(kind("e"), Kind::kBool);
  EXPECT_EQ(kind("f"), Kind::kString);
  EXPECT_EQ(kind("g"), Kind::kString);
  EXPECT_EQ(map.find("g")->text, "12");
  EXPECT_EQ(kind("h"), Kind::kString);
  EXPECT_EQ(map.find("i")->integer, 16);
  EXPECT_EQ(map.find("j")->number, 1000.0);
  EXPECT_EQ(map.find("k")->integer, -7);
  EXPECT_EQ(map.find("l")->integer, 1000);
  EXPECT_EQ(kind("m"), Kind::kString);
  EXPECT_EQ(kind("n"), Kind::kBool);
  EXPECT_EQ(kind("o"), Kind::kString);
  EXPECT_EQ(kind("p"), Kind::kString);
  EXPECT_EQ(kind("q"), Kind::kString);
  EXPECT_EQ(kind("r"), Kind::kNull);
  EXPECT_EQ(map.find("s")->integer, 15);
  EXPECT_EQ(map.find("t")->integer, 3);
}

TEST(Node, KnowsLineAndColumnOfEachValue) {
  const Node map = parsed("a:\n  b:\n    - x\n    - y: 1\n");
  const Node& list = *map.find("a")->find("b");
  EXPECT_EQ(list.items[0].line, 3);
  EXPECT_EQ(list.items[0].column, 7);
  EXPECT_EQ(list.items[1].find("y")->line, 4);
  EXPECT_EQ(list.items[1].find("y")->column, 10);
}

TEST(Node, RefusesDuplicateKeysAtEveryLevel) {
  EXPECT_EQ(error_of("a: 1\na: 2\n"), "test.yaml: line 2, column 1: key \"a\" already set at line 1");
  EXPECT_EQ(error_of("x:\n- {b: 1, c: 2,\n   b: 3}\n"),
            "test.yaml: line 3, column 4: key \"b\" already set at line 2");
  EXPECT_EQ(error_of(R"({"a": 1, "a": 2})"), "test.yaml: line 1, column 10: key \"a\" already set at line 1");
}

TEST(Node, SaysWhereSyntaxBreaks) {
  EXPECT_THAT(error_of("a: [1, 2\nb: 3\n"), testing::HasSubstr("test.yaml: line 2"));
  EXPECT_THAT(error_of(std::string_view("a: \x04 b", 6)), testing::HasSubstr("control character 0x04"));
  EXPECT_THAT(error_of("a: .inf"), testing::HasSubstr("not a number JSON can hold"));
  EXPECT_THAT(error_of("a: !mine 3"), testing::HasSubstr("unsupported tag"));
  EXPECT_EQ(error_of("# x\n, u "), "test.yaml: line 2, column 1: unexpected text");
  EXPECT_EQ(error_of("a: 1\n---\n, u "), "test.yaml: line 3, column 1: unexpected text");
  EXPECT_THAT(error_of("[a]: 1"), testing::HasSubstr("cannot be a key"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 1\n"), testing::HasSubstr("one document expected"));
}

TEST(Node, TellsThatATabDoesNotIndent) {
  auto node = parse_document("plugins:\n\t- type: a\n", "f");
  ASSERT_FALSE(node.ok());
  EXPECT_THAT(node.error().message, testing::HasSubstr("line 2"));
  EXPECT_THAT(node.error().message, testing::HasSubstr("this line begins with a tab"));
}

TEST(Node, AcceptsJsonAndPrintsItSorted) {
  const Node node = parsed("{\"b\":{\"z\":1.5,\"a\":[true,null,\"x\\ny\"]},\n\t\"a\":\"q\"}");
  EXPECT_EQ(node.to_json(), R"({"a":"q","b":{"a":[true,null,"x\ny"],"z":1.5}})");
}

TEST(Node, ExpandsAliasesAndMergesWithinItsBudget) {
  const Node node = parsed("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\nlist: [*b]\n");
  EXPECT_EQ(node.find("use")->to_json(), R"({"x":1,"y":3})");
  EXPECT_EQ(node.find("list")->to_json(), R"([{"x":1,"y":2}])");
  std::string bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string prev = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + prev;
    for (int k = 0; k < 9; ++k) bomb += "," + prev;
    bomb += "]\n";
  }
  EXPECT_THAT(error_of(bomb), testing::HasSubstr("more than 200000 values"));
  EXPECT_THAT(error_of("a: &a [*a]"), testing::HasSubstr("alias inside its own anchor"));
}

TEST(Node, HoldsItsLimits) {
  EXPECT_THAT(error_of(std::string(100, '[') + std::string(100, ']')),
              testing::HasSubstr("nested more than 64 levels deep"));
  EXPECT_THAT(error_of("abcdef", ParseLimits{.max_bytes = 3}),
              testing::HasSubstr("6 bytes, more than the 3"));
}

TEST(Node, ValuesAreTheSameWhereverTheyStood) {
  const Node one = parsed("{a: [1, x], b: {c: true}}");
  EXPECT_TRUE(same_value(one, parsed("a:\n- 1\n- x\nb:\n  c: true\n")));
  EXPECT_FALSE(same_value(one, parsed("{a: [1, y], b: {c: true}}")));
  EXPECT_FALSE(same_value(one, parsed("{a: [1], b: {c: true}}")));
  EXPECT_FALSE(same_value(one, parsed("{a: [1, x], d: {c: true}}")));
  EXPECT_FALSE(same_value(one, parsed("{a: [1, x], b: {c: false}}")));
  EXPECT_FALSE(same_value(parsed("'1'"), parsed("1")));
}

TEST(Node, ItsMemoryIsThatOfAllOfIt) {
  const Node small = parsed("{a: x}");
  EXPECT_EQ(memory_bytes(small), 2 * sizeof(Node) + sizeof(std::string));
  EXPECT_GE(memory_bytes(parsed("{a: " + std::string(1000, 'x') + "}")), memory_bytes(small) + 1000);
}

TEST(Node, SplitsStreamsAndLeavesEmptyDocumentsOut) {
  auto docs = parse_documents("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n", "s");
  ASSERT_TRUE(docs.ok());
  ASSERT_EQ(docs->size(), 2U);
  EXPECT_EQ((*docs)[1].to_json(), R"({"b":2})");
  EXPECT_EQ((*docs)[1].line, 7);
  EXPECT_TRUE(parsed("").is_null());
}

}  // namespace
}  // namespace penstock::config
