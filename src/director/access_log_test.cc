#include "director/access_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace penstock::director {
namespace {

std::string contents(std::FILE* file) {
  std::string text(static_cast<size_t>(::lseek(::fileno(file), 0, SEEK_END)), '\0');
  EXPECT_EQ(::pread(::fileno(file), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

TEST(AccessLog, WritesOneJsonLinePerRequestAndLosesNoneAtTheEnd) {
  std::FILE* file = std::tmpfile();
  {
    AccessLog log({.loops = 2, .fd = ::fileno(file)});
    Outcome outcome;
    outcome.status = 200;
    outcome.reason = "ok";
    outcome.attempts = 1;
    outcome.prompt_tokens = 12;
    outcome.first_token_at = TimePoint(std::chrono::milliseconds(1042));
    outcome.ended_at = TimePoint(std::chrono::milliseconds(1100));
    AccessLog::Line line;
    line.request_id = "r\"1";
    line.path = "/v1/completions";
    line.endpoint = "default/a";
    line.arrived_at = TimePoint(std::chrono::seconds(1));
    line.outcome = &outcome;
    for (size_t loop = 0; loop < 2; ++loop) {
      for (int i = 0; i < 1000; ++i) log.append(loop, WallTime(std::chrono::seconds(5)), line);
    }
  }
  const std::string text = contents(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2000);
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_NE(first.find(R"("ts":5.000000,"msg":"request","request_id":"r\"1")"), std::string::npos) << first;
  EXPECT_NE(first.find(R"("ttft_ms":42.000,"total_ms":100.000)"), std::string::npos) << first;
  std::fclose(file);
}

TEST(AccessLog, AFullBufferDropsLinesAndCountsThem) {
  std::FILE* file = std::tmpfile();
  {
    AccessLog log({.loops = 1, .fd = ::fileno(file), .max_buffer_bytes = 1});
    Outcome outcome;
    AccessLog::Line line;
    line.outcome = &outcome;
    for (int i = 0; i < 100; ++i) log.append(0, WallTime(), line);
    EXPECT_GE(log.dropped_lines(), 1U);
  }
  std::fclose(file);
}

}  // namespace
}  // namespace penstock::director
