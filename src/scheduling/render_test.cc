#include "scheduling/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/node.h"
#include "scheduling/handlers/single_profile_handler.h"
#include "scheduling/pickers/max_score_picker.h"
#include "scheduling/scorers/queue_scorer.h"
#include "scheduling/test_support.h"

namespace penstock::scheduling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RenderTest : public ::testing::Test {
 protected:
  RenderTest() {
    queue.set_identity("queue-scorer", "queue-scorer");
    pool.set_all(Signal::kWaitingRequests, {3, 1});
    record.request_id = "r\"1";
    record.seed = 18446744073709551615U;
    record.arrived_at = pool.now;
    record.endpoint_chosen_at = pool.now + std::chrono::microseconds(1500);
    EXPECT_TRUE(scheduler.run(*pool.context, record).ok());
  }

  TestPool pool{2};
  QueueScorer queue;
  MaxScorePicker picker{{}};
  SingleProfileHandler handler;
  Scheduler scheduler{{{"default", {}, {{&queue, 2}}, &picker}}, &handler};
  DecisionRecord record;
};

TEST_F(RenderTest, IsOneJsonDocumentWithWinnerScoresAndExplanations) {
  const RenderContext context{*pool.context, scheduler};
  const std::string text = render_decision(record, &context);
  auto document = config::parse_document(text, "decision");
  ASSERT_TRUE(document.ok()) << document.error().message << "\n" << text;
  EXPECT_EQ(document->find("request_id")->text, "r\"1");
  EXPECT_EQ(document->find("winner")->text, "ns/e1");
  EXPECT_EQ(document->find("seed")->text, "18446744073709551615");
  const config::Node& moments = *document->find("moments_ms");
  EXPECT_EQ(moments.find("endpoint_chosen")->number, 1.5);
  EXPECT_TRUE(moments.find("first_token")->is_null());
  const config::Node& best = document->find("profiles")->items[0].find("candidates")->items[0];
  EXPECT_EQ(best.find("endpoint")->text, "ns/e1");
  EXPECT_EQ(best.find("total")->number, 2);
  const config::Node& score = best.find("scores")->items[0];
  EXPECT_EQ(score.find("scorer")->text, "queue-scorer");
  EXPECT_EQ(score.find("score")->number, 1);
  EXPECT_EQ(score.find("weight")->number, 2);
  EXPECT_EQ(score.find("contribution")->number, 2);
  EXPECT_EQ(score.find("explain")->text, "waiting 1 requests, age 0 ms, fresh");
}

TEST_F(RenderTest, WithoutContextScoresAreNotExplained) {
  const std::string text = render_decision(record);
  EXPECT_TRUE(config::parse_document(text, "decision").ok());
  EXPECT_THAT(text, Not(HasSubstr("explain")));
}

TEST_F(RenderTest, SignalsNeverObservedHaveNoAge) {
  record.oldest_signal_age = Duration::max();
  EXPECT_THAT(render_decision(record), HasSubstr("\"oldest_signal_age_ms\":null"));
}

TEST(RenderEmptyTest, RecordOfNothingIsStillADocument) {
  EXPECT_TRUE(config::parse_document(render_decision(DecisionRecord{}), "decision").ok());
}

}  // namespace
}  // namespace penstock::scheduling
