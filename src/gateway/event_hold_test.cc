#include "gateway/event_hold.h"

#include <gtest/gtest.h>

namespace penstock::gateway {
namespace {

class EventHoldTest : public ::testing::Test {
 protected:
  // What is sent for the next piece of the stream.
  std::string pass(std::string_view piece) {
    std::vector<std::string_view> pieces{piece};
    hold.pass(pieces);
    return joined(pieces);
  }
  // What a client has got in the end of a stream that broke off after these pieces.
  std::string broken(const std::vector<std::string>& stream) {
    hold.reset();
    std::string out;
    for (const std::string& piece : stream) out += pass(piece);
    return out + std::string(hold.before_error()) + "ERROR";
  }
  static std::string joined(const std::vector<std::string_view>& pieces) {
    std::string out;
    for (const std::string_view piece : pieces) out += piece;
    return out;
  }
  EventHold hold;
};

TEST_F(EventHoldTest, WholeEventsPassAsTheViewsTheyAre) {
  const std::string event = "data: {\"a\":1}\n\n";
  std::vector<std::string_view> pieces{event};
  hold.pass(pieces);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].data(), event.data());
}

TEST_F(EventHoldTest, NothingIsLostHoweverTheStreamIsCut) {
  const std::string stream = "event: x\ndata: {\"a\":1}\n\ndata: b\r\n\r\n: c\n\ndata: [DONE]\n\ndata: rest";
  for (size_t step = 1; step <= stream.size(); ++step) {
    hold.reset();
    std::string out;
    for (size_t at = 0; at < stream.size(); at += step)
      out += pass(std::string_view(stream).substr(at, step));
    std::vector<std::string_view> last{""};
    hold.end(last);
    EXPECT_EQ(out + joined(last), stream) << step;
  }
}

TEST_F(EventHoldTest, AnUnfinishedLineIsDroppedBeforeAnError) {
  EXPECT_EQ(broken({"data: 1\n\nda", "ta: {\"half"}), "data: 1\n\nERROR");
  EXPECT_EQ(broken({"data: {\"half"}), "ERROR");
  EXPECT_EQ(broken({"data: 1\n\n"}), "data: 1\n\nERROR");
  EXPECT_EQ(broken({"data: 1\r\n\r\ndata"}), "data: 1\r\n\r\nERROR");
}

TEST_F(EventHoldTest, AnEventWithItsDataIsEndedAndANameAloneGoesToTheError) {
  EXPECT_EQ(broken({"event: x\ndata: 1\n", "id: 7\nda"}), "event: x\ndata: 1\nid: 7\n\nERROR");
  EXPECT_EQ(broken({"data: 1\n\nevent: x\nda"}), "data: 1\n\nevent: x\nERROR");
  EXPECT_EQ(broken({"{\"bare\":1}\n{\"ba"}), "{\"bare\":1}\n\nERROR");
}

TEST_F(EventHoldTest, ALineLongerThanTheBoundPassesInParts) {
  const std::string half = "data: " + std::string(EventHold::kMaxHeld, 'x');
  EXPECT_EQ(broken({half}), half + "\n\nERROR");
  EXPECT_EQ(broken({half, "y\n"}), half + "y\n\nERROR");
  EXPECT_EQ(broken({half, "y\n\n"}), half + "y\n\nERROR");
}

TEST_F(EventHoldTest, LinesMayEndWithALoneCarriageReturn) {
  EXPECT_EQ(pass("data: 1\r\rdata: 2"), "data: 1\r\r");
}

}  // namespace
}  // namespace penstock::gateway
