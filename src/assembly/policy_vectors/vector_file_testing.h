#pragma once

// The policy conformance vectors of tests/vectors/policies as data. The format is explained in the README
// there; read_file() is its strict decoder: an unknown key, a wrong type or a name of nobody is an error that
// says where.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/node.h"
#include "config/params.h"
#include "inference/signals.h"

namespace penstock::assembly::vectors {

using config::Binder;
using config::Node;

// One signal as it stands: "unknown" is never_seen.
struct SignalInput {
  double value = 0;
  SignalState state = SignalState::kFresh;
  int64_t age_ms = 0;
};

struct EndpointInput {
  std::string ns = "default";
  std::string address;  // empty: 10.0.0.<n>, n from 1 in the order of the file
  int port = 8000;
  std::map<std::string, std::string, std::less<>> labels;
  bool draining = false;
  SignalInput waiting, running, kv_usage;
  SignalInput block_size{0, SignalState::kNeverSeen};
  SignalInput num_blocks{0, SignalState::kNeverSeen};
  std::vector<std::string> adapters_running, adapters_waiting;
  int adapters_max = 0;
  int64_t requests_in_flight = 0;
  int64_t tokens_in_flight = 0;
  int64_t sent_since = 0;                    // of those in flight: sent since the last scrape
  std::map<std::string, std::string> pages;  // what data sources get there, by their names
};

struct NamedEndpoint {
  std::string name;
  EndpointInput input;
};

struct RequestInputs {
  std::string id = "r";
  std::string path = "/v1/completions";
  std::string model = "m";
  std::map<std::string, std::string> headers;
  int priority = 0;
  std::optional<std::vector<std::string>> subset;  // names of endpoints
  std::optional<std::string> body;                 // JSON, instead of the one made of model and prompt
};

struct AnswerInput {
  int status = 200;
  bool stream = false;
  double first_token_ms = 0;
  int chunks = 1;
  double chunk_gap_ms = 0;
  std::optional<std::string> usage;  // JSON
  bool lb_metadata = false;
  std::optional<std::string> served;
};

using Numbers = std::map<std::string, double>;

struct ProfileExpectation {
  std::optional<std::vector<std::string>> filtered;
  std::map<std::string, Numbers> scores;  // by plugin, then endpoint
  Numbers totals;
  std::optional<std::string> picked;
};

struct Refusal {
  int status = 0;
  std::string message;
  std::string reason;
};

struct Expectation {
  ProfileExpectation primary;
  std::map<std::string, ProfileExpectation> profiles;
  std::optional<std::vector<std::string>> ran;  // names of profiles that chose somebody
  // One name; or several, each of which wins at least once; or shares of the draws.
  std::vector<std::string> winners;
  Numbers shares;
  std::optional<std::string> destination;
  std::map<std::string, std::optional<std::string>> request_headers;  // nothing: removed or never set
  std::map<std::string, std::optional<std::string>> response_headers;
  std::map<std::string, std::optional<double>> metadata;
  std::map<std::string, Node> data;          // by key text: what producers made
  std::map<std::string, Numbers> in_flight;  // by endpoint: requests, tokens
  std::optional<std::string> fairness_id;
  std::optional<std::string> fallback;
  std::optional<int64_t> prompt_tokens;
  std::optional<Refusal> refused;
};

struct Step {
  int line = 0;
  double after_ms = 0;
  std::vector<NamedEndpoint> endpoints;  // as changed by this step and those before
  RequestInputs request;
  int repeat = 1;
  bool hold = false;  // the request stays in flight until the case ends
  std::optional<AnswerInput> answer;
  std::optional<Expectation> expect;
  std::map<std::string, Numbers> after_first_token;  // load in flight, by endpoint
  std::map<std::string, Numbers> after_answer;
};

// An external predictor, which is called once.
struct PredictorInput {
  std::optional<std::string> url;  // that is called
  std::optional<Node> request;     // what it is asked
  int status = 200;
  std::optional<std::string> answer;  // JSON; nothing: none comes
};

struct Case {
  std::string file;  // stem
  std::string name;
  int line = 0;
  std::optional<Node> configuration;          // nothing: the built-in one
  std::optional<std::string> refused_config;  // loading fails and says this
  std::vector<std::string> warnings;          // loading warns, with these texts in it
  std::map<std::string, Node> given;          // by key text
  int draws = 0;                              // 0: decide once
  bool together = false;                      // the steps are requests of one moment
  std::optional<PredictorInput> predictor;    // they are, too
  std::vector<Step> steps;
};

struct VectorFile {
  std::string stem;
  std::vector<std::string> plugins;
  std::vector<Case> cases;
};

// Errors: everything that is wrong with the file, each with its place.
Result<VectorFile> read_file(const std::filesystem::path& path);
Result<VectorFile> decode_file(std::string_view text, const std::string& stem);

// "nan" is written as a word.
std::optional<double> number_of(const Node& node);

// How far a figure may be from the vector's.
inline constexpr double kTolerance = 1e-6;

// Decodes a part of a file that its decoder left as it stands, as strictly; what is wrong is a test failure.
template <typename Bind>
void expect_decoded(const Node& node, const std::string& path, Bind&& bind) {
  const Status status = config::decode_params(&node, path, bind, Binder::Case::kSensitive);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace penstock::assembly::vectors
