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

TEST(AccessLog, APipeThatNobodyReadsDelaysTheEndOnlySoLong) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  AccessLog log({.loops = 1, .fd = ends[1], .stop_patience = std::chrono::milliseconds(100)});
  Outcome outcome;
  AccessLog::Line line;
  line.outcome = &outcome;
  constexpr uint64_t kLines = 2000;  // more than a pipe holds
  for (uint64_t i = 0; i < kLines; ++i) log.append(0, WallTime(), line);
  log.stop();
  EXPECT_GT(log.dropped_lines(), 0U);
  ::close(ends[1]);
  std::string read;
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], chunk, sizeof chunk)) > 0;)
    read.append(chunk, static_cast<size_t>(got));
  ::close(ends[0]);
  const auto lines = static_cast<uint64_t>(std::count(read.begin(), read.end(), '\n'));
  EXPECT_EQ(lines + log.dropped_lines(), kLines);
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
