#include "kubernetes/watch_decoder.h"

#include <gtest/gtest.h>

#include "kubernetes/testing.h"

namespace penstock::kubernetes {
namespace {

using testing::recorded;
using testing::vector_text;

constexpr size_t kLimit = 1 << 20;

// Every event as "TYPE name@version", from pieces of `size` bytes.
std::vector<std::string> events_of(std::string_view body, size_t size, WatchDecoder& decoder) {
  static constexpr const char* kTypes[] = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"};
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size(); at += size) {
    decoder.feed(body.substr(at, size));
    while (const auto event = decoder.next()) {
      out.push_back(std::string(kTypes[static_cast<int>(event->type)]) + " " +
                    std::string(event->object["metadata"]["name"].text()) + "@" +
                    std::string(event->resource_version) + (event->initial_events_end ? " end" : ""));
    }
  }
  return out;
}

TEST(WatchDecoder, ReadsARecordedStreamHoweverItIsCut) {
  const std::string body = vector_text("watchlist-sendInitialEvents.jsonl");
  WatchDecoder whole(kLimit);
  const std::vector<std::string> expected = events_of(body, body.size(), whole);
  EXPECT_EQ(expected, (std::vector<std::string>{"ADDED rt@304", "ADDED rt2@305", "BOOKMARK @305 end"}));
  for (const size_t size : {1U, 7U, 100U, 1000U}) {
    WatchDecoder decoder(kLimit);
    EXPECT_EQ(events_of(body, size, decoder), expected) << size;
    EXPECT_TRUE(decoder.complete());
    EXPECT_TRUE(decoder.failure().ok());
  }
}

TEST(WatchDecoder, ReadsEveryTypeOfEventThatAServerRecorded) {
  const std::string body = vector_text("watch-endpointslice-scale.jsonl");
  WatchDecoder decoder(kLimit);
  EXPECT_GT(events_of(body, 512, decoder).size(), 4U);
  EXPECT_TRUE(decoder.failure().ok());
}

TEST(WatchDecoder, AnErrorEventIsAFailureWithItsStatus) {
  WatchDecoder decoder(kLimit);
  EXPECT_TRUE(events_of(recorded("watch-410-too-old.http").body + "\n", 64, decoder).empty());
  EXPECT_EQ(decoder.failure().reason, Reason::kExpired);
  EXPECT_EQ(decoder.failure().code, 410);
  EXPECT_EQ(decoder.failure().message, "too old resource version: 1 (292)");
}

TEST(WatchDecoder, EventsBeforeAnErrorComeFirst) {
  WatchDecoder decoder(kLimit);
  decoder.feed(
      "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"1\"}}}\n"
      "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Gone\"}}\n"
      "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\",\"resourceVersion\":\"2\"}}}\n");
  EXPECT_TRUE(decoder.next().has_value());
  EXPECT_FALSE(decoder.next().has_value());
  EXPECT_EQ(decoder.failure().reason, Reason::kExpired);
  EXPECT_FALSE(decoder.next().has_value());
}

TEST(WatchDecoder, TooLongALineIsRefusedBeforeItsEnd) {
  WatchDecoder decoder(1000);
  for (int i = 0; i < 11; ++i) decoder.feed(std::string(100, '['));
  EXPECT_FALSE(decoder.next().has_value());
  EXPECT_EQ(decoder.failure().reason, Reason::kMalformed);
}

TEST(WatchDecoder, WhatIsNoEventIsAFailureAndAnUnknownTypeIsNot) {
  for (const char* bad :
       {"{\"type\":\"ADDED\"}\n", "{\"object\":{}}\n", "[]\n", "{\"type\":\"ADDED\",\n", "x\n"}) {
    WatchDecoder decoder(kLimit);
    decoder.feed(bad);
    EXPECT_FALSE(decoder.next().has_value()) << bad;
    EXPECT_EQ(decoder.failure().reason, Reason::kMalformed) << bad;
  }
  WatchDecoder decoder(kLimit);
  decoder.feed("{\"type\":\"SHINY\",\"object\":{}}\n\n");
  EXPECT_FALSE(decoder.next().has_value());
  EXPECT_TRUE(decoder.failure().ok());
  decoder.feed("{\"type\":\"AD");
  EXPECT_FALSE(decoder.next().has_value());
  EXPECT_FALSE(decoder.complete());
}

TEST(Failure, NamesTheReasonOfRecordedRefusals) {
  const auto reason = [](const std::string& name) {
    const testing::Recorded answer = recorded(name);
    return failure_of_body(answer.body, answer.status);
  };
  EXPECT_EQ(reason("get-401.http").reason, Reason::kUnauthorized);
  EXPECT_EQ(reason("list-403-serviceaccount.http").reason, Reason::kForbidden);
  EXPECT_NE(reason("list-403-serviceaccount.http").message.find("cannot list resource \"httproutes\""),
            std::string::npos);
  EXPECT_EQ(reason("get-404.http").reason, Reason::kNotFound);
  EXPECT_EQ(reason("create-httproute-409-exists.http").reason, Reason::kAlreadyExists);
  EXPECT_EQ(reason("put-httproute-status-409-stale.http").reason, Reason::kConflict);
  EXPECT_EQ(reason("create-httproute-422-cel.http").reason, Reason::kInvalid);
  EXPECT_EQ(reason("watchlist-missing-match-422.http").reason, Reason::kInvalid);
  EXPECT_EQ(reason("list-exact-410.http").reason, Reason::kExpired);
  const Failure expired = reason("list-continue-410-expired.http");
  EXPECT_EQ(expired.reason, Reason::kExpired);
  EXPECT_FALSE(expired.continue_token.empty());
  const Failure ahead = reason("list-rv-in-future-504.http");
  EXPECT_EQ(ahead.reason, Reason::kTimeout);
  EXPECT_EQ(ahead.retry_after, std::chrono::seconds(1));
}

TEST(Failure, APageThatIsNoStatusIsOneOfItsCode) {
  const Failure proxy = failure_of_body("<html>\nbad gateway", 502);
  EXPECT_EQ(proxy.reason, Reason::kServer);
  EXPECT_EQ(proxy.message, "HTTP status 502: <html>");
  EXPECT_EQ(failure_of_body("", 404).reason, Reason::kNotFound);
  EXPECT_EQ(failure_of_body("\xff\xfe", 500).message, "HTTP status 500");
  EXPECT_EQ(failure_of_body("{}", 200).reason, Reason::kMalformed);
}

}  // namespace
}  // namespace penstock::kubernetes
