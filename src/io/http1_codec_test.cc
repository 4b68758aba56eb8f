#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/detail/http1_codec.h"

namespace penstock::io::detail {
namespace {

struct ParsedRequest {
  HeadScanner::Result scan = HeadScanner::Result::kIncomplete;
  ParseError error = ParseError::kNone;
  std::string bytes;
  FieldVector fields;
  RequestHead head;
  MessageFraming framing;
  size_t head_end = 0;
};

// Feeds `text` in steps of `step` bytes, as a socket would.
ParsedRequest parse_request(std::string text, size_t step = 1, size_t max_fields = 32) {
  ParsedRequest out;
  out.bytes = std::move(text);
  HeadScanner scanner;
  for (size_t have = 0; have < out.bytes.size() && out.scan == HeadScanner::Result::kIncomplete;) {
    have = std::min(have + step, out.bytes.size());
    out.scan = scanner.scan(out.bytes.data(), have, true);
  }
  if (out.scan != HeadScanner::Result::kComplete) return out;
  out.head_end = scanner.end();
  out.error = parse_request_head(out.bytes.data(), scanner.begin(), scanner.end(), max_fields, out.fields,
                                 out.head, out.framing);
  return out;
}

bool refused(const std::string& text, int status) {
  ParsedRequest parsed = parse_request(text);
  if (parsed.scan == HeadScanner::Result::kMalformed) return status == 400;
  return parsed.scan == HeadScanner::Result::kComplete && parsed.error != ParseError::kNone &&
         status_of(parsed.error) == status;
}

TEST(RequestHead, IsTheSameWhereverTheBytesAreSplit) {
  const std::string text =
      "POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: example.org:8080\r\nContent-Type:application/json "
      "\t\r\n"
      "X-Empty:\r\nContent-Length: 12\r\n\r\nbody";
  for (size_t step = 1; step <= text.size(); ++step) {
    ParsedRequest parsed = parse_request(text, step);
    ASSERT_EQ(parsed.scan, HeadScanner::Result::kComplete);
    ASSERT_EQ(parsed.error, ParseError::kNone);
    EXPECT_EQ(parsed.head_end, text.size() - 4);
    EXPECT_EQ(parsed.head.method, "POST");
    EXPECT_EQ(parsed.head.target, "/v1/chat/completions?a=b");
    EXPECT_EQ(parsed.head.path, "/v1/chat/completions");
    EXPECT_EQ(parsed.head.query, "a=b");
    EXPECT_EQ(parsed.head.authority, "example.org:8080");
    ASSERT_EQ(parsed.head.fields.size(), 4U);
    EXPECT_EQ(parsed.head.fields[1].name, "content-type");
    EXPECT_EQ(parsed.head.fields[1].value, "application/json");
    EXPECT_EQ(parsed.head.fields.find("x-empty"), "");
    EXPECT_EQ(parsed.framing.kind, MessageFraming::Kind::kLength);
    EXPECT_EQ(parsed.framing.length, 12U);
    EXPECT_TRUE(parsed.framing.keep_alive);
  }
}

TEST(RequestHead, AbsoluteTargetsComeInOriginForm) {
  struct Case {
    const char* target;
    const char* expected;
    const char* authority;
  };
  for (const Case& c :
       {Case{"http://a.example/x?y", "/x?y", "a.example"}, Case{"HTTPS://a.example:1", "/", "a.example:1"},
        Case{"http://a.example?q=1", "/?q=1", "a.example"}, Case{"/p", "/p", "h"}}) {
    ParsedRequest parsed = parse_request(std::string("GET ") + c.target + " HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_EQ(parsed.error, ParseError::kNone) << c.target;
    EXPECT_EQ(parsed.head.target, c.expected);
    EXPECT_EQ(parsed.head.authority, c.authority);
  }
}

TEST(RequestHead, EmptyLinesInFrontAreSkippedButNotWithoutEnd) {
  EXPECT_EQ(parse_request("\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n").head.method, "GET");
  std::string many;
  for (int i = 0; i < 20; ++i) many += "\r\n";
  EXPECT_EQ(parse_request(many).scan, HeadScanner::Result::kMalformed);
}

TEST(RequestHead, KeepAliveFollowsVersionAndConnectionField) {
  EXPECT_FALSE(parse_request("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n").framing.keep_alive);
  EXPECT_FALSE(parse_request("GET / HTTP/1.0\r\n\r\n").framing.keep_alive);
  EXPECT_TRUE(parse_request("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").framing.keep_alive);
}

TEST(RequestHead, ChunkedInAnyCaseAndExpectations) {
  ParsedRequest parsed = parse_request(
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(parsed.framing.kind, MessageFraming::Kind::kChunked);
  EXPECT_TRUE(parsed.framing.expect_continue);
  EXPECT_TRUE(parse_request("GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n").framing.unknown_expectation);
}

TEST(RequestHead, RefusesWhatCouldBeReadInTwoWays) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (const std::string& bad : std::vector<std::string>{
           post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
           post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
           post + "Content-Length: 1, 1\r\n\r\n",
           post + "Content-Length: +1\r\n\r\n",
           post + "Content-Length: -1\r\n\r\n",
           post + "Content-Length: 0x1\r\n\r\n",
           post + "Content-Length:\r\n\r\n",
           post + "Content-Length: 99999999999999999999\r\n\r\n",
           post + "Transfer-Encoding: chunked, gzip\r\n\r\n",
           post + "Transfer-Encoding: chunked, chunked\r\n\r\n",
           post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
           post + "Transfer-Encoding: identity\r\n\r\n",
           post + "Transfer-Encoding: \r\n\r\n",
           post + "Transfer-Encoding: ,chunked\r\n\r\n",
           post + "Transfer-Encoding: xchunked\r\n\r\n",
           post + "Transfer-Encoding : chunked\r\n\r\n",
           "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
           get + "X: a\r\n folded\r\n\r\n",
           get + "X: a\rb\r\n\r\n",
           get + "X: a\nY: b\r\n\r\n",
           get + "X\r\n\r\n",
           get + ": v\r\n\r\n",
           get + "X Y: v\r\n\r\n",
           get + "X(: v\r\n\r\n",
           get + std::string("X: a\0b\r\n\r\n", 10),
           get + "X: a\x7f\r\n\r\n",
           get + "Host: other\r\n\r\n",
           "GET / HTTP/1.1\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
           "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET / x HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET x HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET * HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n",
           "G@T / HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET / http/1.1\r\nHost: h\r\n\r\n",
           "GET / HTTP/1.1x\r\nHost: h\r\n\r\n",
           "GET /\r\nHost: h\r\n\r\n",
           "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET / HTTP/1.1\nHost: h\n\n",
           " GET / HTTP/1.1\r\nHost: h\r\n\r\n",
       }) {
    EXPECT_TRUE(refused(bad, 400)) << bad;
  }
  EXPECT_TRUE(refused(post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501));
  EXPECT_TRUE(refused("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505));
  EXPECT_TRUE(refused("GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505));
  std::string many = get;
  for (int i = 0; i < 40; ++i) many += "X: 1\r\n";
  EXPECT_TRUE(refused(many + "\r\n", 431));
}

TEST(RequestHead, ValuesMayHoldTabsAndHighBytes) {
  ParsedRequest parsed =
      parse_request("GET / HTTP/1.1\r\nHost: h\r\nX: caf\xc3\xa9\tthat is long enough for a vector\r\n\r\n");
  EXPECT_EQ(parsed.error, ParseError::kNone);
  EXPECT_TRUE(is_field_text("0123456789abcdef\xff\x80 tail"));
  for (size_t at = 0; at < 40; ++at) {
    for (const char bad : {'\0', '\r', '\n', '\x1f', '\x7f'}) {
      std::string text(40, 'x');
      text[at] = bad;
      EXPECT_FALSE(is_field_text(text));
    }
  }
}

struct ParsedResponse {
  ParseError error = ParseError::kNone;
  std::string bytes;
  FieldVector fields;
  ResponseHead head;
  MessageFraming framing;
};

ParsedResponse parse_response(std::string text, bool to_head = false) {
  ParsedResponse out;
  out.bytes = std::move(text);
  HeadScanner scanner;
  if (scanner.scan(out.bytes.data(), out.bytes.size(), false) != HeadScanner::Result::kComplete) {
    out.error = ParseError::kMalformed;
    return out;
  }
  out.error = parse_response_head(out.bytes.data(), scanner.begin(), scanner.end(), 32, to_head, out.fields,
                                  out.head, out.framing);
  return out;
}

TEST(ResponseHead, FramingFollowsStatusMethodAndFields) {
  using Kind = MessageFraming::Kind;
  EXPECT_EQ(parse_response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").framing.kind, Kind::kLength);
  EXPECT_EQ(parse_response("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").framing.kind,
            Kind::kChunked);
  ParsedResponse until_close = parse_response("HTTP/1.1 200\r\n\r\n");
  EXPECT_EQ(until_close.framing.kind, Kind::kUntilClose);
  EXPECT_FALSE(until_close.framing.keep_alive);
  EXPECT_EQ(parse_response("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").framing.kind, Kind::kNone);
  EXPECT_EQ(parse_response("HTTP/1.1 204 No Content\r\n\r\n").framing.kind, Kind::kNone);
  EXPECT_EQ(parse_response("HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n").framing.kind, Kind::kNone);
  EXPECT_EQ(parse_response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true).framing.kind, Kind::kNone);
  EXPECT_EQ(parse_response("HTTP/1.1 200 All is well\r\nContent-Length: 0\r\n\r\n").head.reason,
            "All is well");
}

TEST(ResponseHead, RefusesAmbiguousAnswers) {
  for (const char* bad :
       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "200 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 999 OK\r\n\r\n", "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 O\x01K\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"})
    EXPECT_NE(parse_response(bad).error, ParseError::kNone) << bad;
}

struct Decoded {
  std::string body;
  bool done = false;
  bool error = false;
  std::string rest;
  std::vector<std::pair<std::string, std::string>> trailers;
};

Decoded decode_chunks(const std::string& text, size_t step) {
  Decoded out;
  ChunkDecoder decoder;
  std::string pending;
  for (size_t at = 0; at < text.size() && !out.done && !out.error;) {
    const size_t take = std::min(step, text.size() - at);
    pending.append(text, at, take);
    at += take;
    while (!pending.empty() && !out.done && !out.error) {
      const ChunkDecoder::Step result = decoder.decode(pending.data(), pending.size(), 1024);
      out.body += result.payload;
      out.done = result.done;
      out.error = result.error;
      pending.erase(0, result.consumed);
      if (result.consumed == 0) break;
    }
    if (out.done) out.rest = pending + text.substr(at);
  }
  for (const HeaderField& field : decoder.trailers()) out.trailers.emplace_back(field.name, field.value);
  return out;
}

TEST(ChunkDecoder, GivesTheSameBodyWhereverTheBytesAreSplit) {
  const std::string big(9000, 'z');
  const std::string text = "5\r\nhello\r\n1;ext=\"v\"\r\n \r\n2328\r\n" + big +
                           "\r\n00A\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\nGET /";
  for (const size_t step : {1UL, 2UL, 3UL, 5UL, 7UL, 11UL, 64UL, 1000UL, 9010UL, text.size()}) {
    const Decoded decoded = decode_chunks(text, step);
    ASSERT_FALSE(decoded.error) << step;
    EXPECT_TRUE(decoded.done);
    EXPECT_EQ(decoded.body, "hello " + big + "0123456789");
    EXPECT_EQ(decoded.rest, "GET /");
    EXPECT_EQ(decoded.trailers,
              (std::vector<std::pair<std::string, std::string>>{{"x-sum", "1"}, {"y", "2"}}));
  }
}

TEST(ChunkDecoder, RefusesBrokenSizesAndEnds) {
  for (const char* bad :
       {"\r\n", "g\r\n", "-1\r\n", "0x5\r\n", " 5\r\nhello\r\n", "5 \r\nhello\r\n", "5\nhello\r\n",
        "5\rhello", "5\r\nhelloX\r\n", "5\r\nhello\n", "1000000000000000\r\n", "5;a\nb\r\nhello\r\n",
        "0\r\nX\r\n\r\n", "0\r\nX : 1\r\n\r\n", "0\r\nContent-Length: 1\r\n\r\n", "0\r\n X: 1\r\n\r\n",
        "5;\x01\r\nhello\r\n"}) {
    for (const size_t step : {1UL, 100UL}) EXPECT_TRUE(decode_chunks(bad, step).error) << bad;
  }
  EXPECT_TRUE(decode_chunks("0\r\nX: " + std::string(2000, 'y') + "\r\n\r\n", 100).error);
  EXPECT_TRUE(decode_chunks("1;" + std::string(20000, 'y') + "\r\n1\r\n0\r\n\r\n", 100).error);
}

TEST(Writing, LeavesOutConnectionFieldsAndRefusesInjection) {
  std::string out;
  bool has_date = false;
  bool has_host = false;
  const HeaderField good[] = {{"X-A", "1"},        {"Content-Length", "7"}, {"transfer-encoding", "chunked"},
                              {"Connection", "x"}, {"Keep-Alive", "1"},     {"Date", "now"},
                              {"empty", ""}};
  EXPECT_TRUE(append_fields(out, good, has_date, has_host));
  EXPECT_EQ(out, "X-A: 1\r\nDate: now\r\nempty: \r\n");
  EXPECT_TRUE(has_date);
  const HeaderField injected[] = {{"X", "1\r\nY: 2"}};
  EXPECT_FALSE(append_fields(out, injected, has_date, has_host));
  const HeaderField name[] = {{"X Y", "1"}};
  EXPECT_FALSE(append_fields(out, name, has_date, has_host));
  EXPECT_EQ(http_date().size(), 29U);
}

TEST(ListToken, IsFoundWholeAndInAnyCase) {
  EXPECT_TRUE(list_has_token("a, Close ,b", "close"));
  EXPECT_FALSE(list_has_token("closed, xclose", "close"));
  EXPECT_FALSE(list_has_token("", "close"));
}

}  // namespace
}  // namespace penstock::io::detail
