#include "scheduling/producers/session_id_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;

std::string session(std::string_view parameters, std::string_view name, std::string_view value) {
  TestPool pool(1);
  const DataProducer* producer = nullptr;
  const auto plugin = make_as("session-id-producer", producer, parameters, &pool.slots);
  if (producer == nullptr) return "not made";
  const HeaderField fields[] = {{name, value}};
  pool.request.headers = fields;
  EXPECT_TRUE(producer->produce(*pool.context).ok());
  const auto* id = pool.attributes->value<SessionId>(pool.slots.slot(data_keys::kSessionId));
  return id == nullptr ? "" : std::string(id->text);
}

TEST(SessionIdProducerTest, ReadsAHeaderOrACookie) {
  EXPECT_EQ(session("headerName: ' X-Sid '", "x-sid", " a "), "a");
  EXPECT_EQ(session("headerName: x-sid", "x-sid", "  "), "");
  EXPECT_EQ(session("cookieName: sid", "cookie", "a=1; sid=abc=x"), "abc=x");
  EXPECT_EQ(session("cookieName: sid", "cookie", "sid=1; sid=2"), "1");
  EXPECT_EQ(session("cookieName: sid", "cookie", "SID=1;;sid"), "");
}

TEST(SessionIdProducerTest, NeedsExactlyOneName) {
  constexpr std::string_view kOne =
      "'session-id-producer' requires exactly one of headerName or cookieName to be set";
  const auto none = make_plugin("session-id-producer");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr(std::string(kOne)));
  const auto both = make_plugin("session-id-producer", "{headerName: a, cookieName: b}");
  ASSERT_FALSE(both.ok());
  EXPECT_THAT(both.error().message, HasSubstr(std::string(kOne) + ", not both"));
}

}  // namespace
}  // namespace penstock::scheduling
