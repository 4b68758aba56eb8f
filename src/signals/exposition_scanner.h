#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::signals {

// The metric names a scan looks for, compiled once. Immutable.
class NameSet {
 public:
  // Repeated names are folded. REQUIRES: no name is empty.
  explicit NameSet(std::vector<std::string> names);

  size_t size() const { return names_.size(); }
  const std::string& name(uint32_t index) const { return names_[index]; }
  std::optional<uint32_t> find(std::string_view name) const;

 private:
  friend class ExpositionScanner;
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  std::vector<std::string> names_;    // ascending
  size_t prefix_ = 0;                 // bytes all names share, at least one less than the shortest has
  std::array<Range, 256> by_byte_{};  // names by the byte after the shared ones
};

struct SampleLabel {
  std::string_view name;
  std::string_view value;  // escapes resolved
};

// One sample of a wanted name. Views live during the call.
struct Sample {
  uint32_t name = 0;  // index in the NameSet
  std::span<const SampleLabel> labels;
  double value = 0;
  int64_t timestamp_ms = 0;  // 0 when the line has none

  // The label's value, or nothing.
  std::optional<std::string_view> label(std::string_view label_name) const {
    for (const SampleLabel& l : labels)
      if (l.name == label_name) return l.value;
    return std::nullopt;
  }
};

class SampleSink {
 public:
  virtual ~SampleSink() = default;
  virtual void sample(const Sample& sample) = 0;
};

// Finds the samples of a few names in a page of Prometheus text (or OpenMetrics), fed in pieces of any
// size, without parsing the rest: one search for the line's end and one comparison reject a line. What it
// finds doesn't depend on where the pieces were cut.
//
// Unlike the reference, whose whole page fails at its first odd line, it takes samples without TYPE, CRLF
// line ends, a last line without an end, exemplars, timestamps and any comment; a wanted line that can't be
// read is left out and counted. TYPE is not looked at: a sample is what bears the name.
class ExpositionScanner {
 public:
  struct Options {
    size_t max_line_bytes = 64UL * 1024;        // longer lines are left out and counted
    size_t max_page_bytes = 8UL * 1024 * 1024;  // what follows is not read
    size_t max_labels = 256;                    // a line with more is malformed
  };
  struct Stats {
    uint64_t bytes = 0;
    uint64_t lines = 0;
    uint64_t samples = 0;
    uint64_t malformed = 0;  // lines of a wanted name
    uint64_t overlong = 0;   // lines of any name
    bool page_too_large = false;
  };

  // Both references outlive the scanner.
  ExpositionScanner(const NameSet& names, SampleSink& sink, Options options);
  ExpositionScanner(const NameSet& names, SampleSink& sink) : ExpositionScanner(names, sink, Options{}) {}

  // False once the page limit is reached: nothing more is taken.
  bool feed(std::string_view piece);
  // The page is complete: looks at a last line that had no end.
  void finish();
  // Ready for another page, keeping its memory.
  void reset();
  const Stats& stats() const { return stats_; }

 private:
  void line(std::string_view text);
  bool parse(uint32_t name, std::string_view rest);
  bool parse_labels(std::string_view& rest);

  const NameSet& names_;
  SampleSink& sink_;
  const Options options_;
  std::string carry_;      // the beginning of a line whose end has not come
  bool skipping_ = false;  // inside a line that is too long
  std::vector<SampleLabel> labels_;
  std::string unescaped_;
  Stats stats_;
};

}  // namespace penstock::signals
