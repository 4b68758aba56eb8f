#include "config/params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::config {
namespace {

struct Sample {
  int64_t threshold = 128;
  double headroom = 0.5;
  bool enabled = true;
  std::string name = "x";
  Duration wait = std::chrono::milliseconds(200);
  int64_t bytes = 1024;
  std::vector<std::string> tags;
  std::optional<int64_t> limit;
  int small = 1;
  const Node* inner = nullptr;
};

void bind(Binder& b, Sample& s) {
  b.field("threshold", s.threshold, "requests", "Where it stops.");
  b.field("headroom", s.headroom, "ratio", "");
  b.field("enabled", s.enabled, "", "");
  b.field("name", s.name, "", "");
  b.field("wait", s.wait, "", "");
  b.quantity("bytes", s.bytes, "bytes", "");
  b.field("tags", s.tags, "", "");
  b.field("limit", s.limit, "", "");
  b.field("small", s.small, "", "");
  b.node("inner", s.inner, "");
}

Status decode(std::string_view text, Sample& out, Node& keep,
              Binder::Case match = Binder::Case::kInsensitive) {
  auto node = parse_document(text, "t");
  EXPECT_TRUE(node.ok());
  keep = std::move(node).value();
  return decode_params(&keep, "plugins[0].parameters", [&](Binder& b) { bind(b, out); }, match);
}

TEST(Params, DecodesEveryKindAndKeepsDefaults) {
  Sample s;
  Node keep;
  ASSERT_TRUE(
      decode("{Threshold: 5, headroom: 1, enabled: false, name: n, wait: 1m, bytes: 1Gi, tags: [a, b], "
             "limit: 3, inner: {k: 1}}",
             s, keep)
          .ok());
  EXPECT_EQ(s.threshold, 5);
  EXPECT_EQ(s.headroom, 1.0);
  EXPECT_FALSE(s.enabled);
  EXPECT_EQ(s.name, "n");
  EXPECT_EQ(s.wait, std::chrono::minutes(1));
  EXPECT_EQ(s.bytes, 1 << 30);
  EXPECT_EQ(s.tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.limit, 3);
  EXPECT_EQ(s.small, 1);
  ASSERT_NE(s.inner, nullptr);
  Sample untouched;
  EXPECT_TRUE(decode_params(nullptr, "p", [&](Binder& b) { bind(b, untouched); }).ok());
  EXPECT_EQ(untouched.threshold, 128);
}

TEST(Params, NamesPathValueAndLineOfEveryError) {
  Sample s;
  Node keep;
  const Status status =
      decode("threshold: asdf\nwait: 60\nbogus: 1\nsmall: 99999999999\nbytes: [1]\n", s, keep);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(
      status.error().message,
      "plugins[0].parameters.threshold: expected int, got string \"asdf\" (line 1); "
      "plugins[0].parameters.wait: expected duration (such as \"200ms\"), got int 60 (line 2); "
      "plugins[0].parameters.bytes: expected quantity (such as \"64Mi\"), got list [1] (line 5); "
      "plugins[0].parameters.small: 99999999999 is out of range (line 4); "
      "plugins[0].parameters: unknown field \"bogus\" (line 3), known: threshold, headroom, enabled, name, "
      "wait, bytes, tags, limit, small, inner");
}

TEST(Params, AnErrorFromWithinKeepsItsOwnLine) {
  const auto node = parse_document("inner:\n  k: 1\nlast: 2\n", "t");
  ASSERT_TRUE(node.ok());
  Binder b(&*node, "p", Binder::Case::kSensitive);
  const Node* inner = nullptr;
  int last = 0;
  b.node("inner", inner, "");
  b.field("last", last, "", "");
  b.fail("inner", "k: too small (line 2)");
  b.fail("last", "too large (got 2)");
  b.fail("last", "odd)");
  const Status status = b.finish();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            "p.inner: k: too small (line 2); p.last: too large (got 2) (line 3); p.last: odd) (line 3)");
}

TEST(Params, AnErrorFromWithinNamesTheObjectOnce) {
  const auto node = parse_document("inner:\n  k: 1\n  x: 1\n", "t");
  ASSERT_TRUE(node.ok());
  const auto error_of = [&](std::string_view message) {
    Binder b(&*node, "p", Binder::Case::kSensitive);
    const Node* inner = nullptr;
    b.node("inner", inner, "");
    b.fail("inner", message);
    return b.finish().error().message;
  };
  EXPECT_EQ(error_of("inner.k: too small (line 2)"), "p.inner.k: too small (line 2)");
  EXPECT_EQ(error_of("inner[0].k: too small (line 2); inner[1]: odd (line 3)"),
            "p.inner[0].k: too small (line 2); inner[1]: odd (line 3)");
  EXPECT_EQ(error_of("inner: unknown field \"x\" (line 3), known: k"),
            "p.inner: unknown field \"x\" (line 3), known: k");
  EXPECT_EQ(error_of("inner.k must be 2"), "p.inner.k must be 2 (line 2)");
  EXPECT_EQ(error_of("innermost"), "p.inner: innermost (line 2)");
}

TEST(Params, CaseMattersOnlyWhereAsked) {
  Sample s;
  Node keep;
  EXPECT_TRUE(decode("THRESHOLD: 5", s, keep).ok());
  EXPECT_FALSE(decode("Threshold: 5", s, keep, Binder::Case::kSensitive).ok());
  const Status twice = decode("threshold: 1\nThreshold: 2\n", s, keep);
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.error().message, testing::HasSubstr("given twice"));
}

TEST(Params, RefusesWhatIsNotAnObject) {
  Sample s;
  Node keep;
  const Status status = decode("[1, 2]", s, keep);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "plugins[0].parameters: expected object, got list [1,2] (line 1)");
}

TEST(Params, DescribesWhatItDecodes) {
  Sample s;
  const auto docs = describe_params([&](Binder& b) { bind(b, s); });
  ASSERT_EQ(docs.size(), 10U);
  EXPECT_EQ(docs[0].name, "threshold");
  EXPECT_EQ(docs[0].type, "int");
  EXPECT_EQ(docs[0].default_value, "128");
  EXPECT_EQ(docs[0].unit, "requests");
  EXPECT_EQ(docs[0].text, "Where it stops.");
  EXPECT_EQ(docs[4].type, "duration");
  EXPECT_EQ(docs[4].default_value, "200ms");
}

}  // namespace
}  // namespace penstock::config
