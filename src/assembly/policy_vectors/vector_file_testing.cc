#include "assembly/policy_vectors/vector_file_testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "config/files.h"

namespace penstock::assembly::vectors {

namespace {

// Decodes one file; everything wrong is collected.
class Decoder {
 public:
  static Result<VectorFile> decode(std::string_view text, const std::string& stem) {
    Result<Node> document = config::parse_document(text, stem + ".yaml");
    if (!document.ok()) return document.error();
    Decoder decoder;
    decoder.file_.stem = stem;
    decoder.file(*document);
    if (decoder.errors_.empty()) return std::move(decoder.file_);
    std::string joined = stem + ".yaml";
    for (const std::string& error : decoder.errors_) joined += "\n  " + error;
    return Error{ErrorCode::kInvalidConfig, std::move(joined)};
  }

 private:
  template <typename Bind>
  void object(const Node* node, const std::string& path, Bind&& bind) {
    const Status status = config::decode_params(node, path, bind, Binder::Case::kSensitive);
    if (!status.ok()) errors_.push_back(status.error().message);
  }
  void at_least(int64_t least, int64_t value, const Node& node, const std::string& path) {
    if (value < least) wrong(node, path, fmt::format("{} is less than {}", value, least));
  }
  void wrong(const Node& node, const std::string& path, std::string_view what) {
    errors_.push_back(fmt::format("{}: {} (line {})", path, what, node.line));
  }
  // Calls fn(key, value, path) for each member.
  template <typename Fn>
  void members(const Node* node, const std::string& path, Fn&& fn) {
    if (node == nullptr) return;
    if (!node->is_map()) return wrong(*node, path, "expected a map");
    for (const auto& [key, value] : node->members) fn(key, value, path + "." + key);
  }
  template <typename Fn>
  void items(const Node* node, const std::string& path, Fn&& fn) {
    if (node == nullptr) return;
    if (!node->is_list()) return wrong(*node, path, "expected a list");
    for (size_t i = 0; i < node->items.size(); ++i) fn(node->items[i], fmt::format("{}[{}]", path, i));
  }
  Numbers numbers(const Node* node, const std::string& path) {
    Numbers out;
    members(node, path, [&](const std::string& key, const Node& value, const std::string& at) {
      const std::optional<double> parsed = number_of(value);
      if (!parsed) return wrong(value, at, "expected a number");
      out[key] = *parsed;
    });
    return out;
  }
  std::map<std::string, Numbers> tables(const Node* node, const std::string& path) {
    std::map<std::string, Numbers> out;
    members(node, path, [&](const std::string& key, const Node& value, const std::string& at) {
      out[key] = numbers(&value, at);
    });
    return out;
  }
  // Texts by name.
  template <typename Map>
  void texts(const Node* node, const std::string& path, Map& out) {
    constexpr bool kMayBeMissing = std::is_same_v<typename Map::mapped_type, std::optional<std::string>>;
    members(node, path, [&](const std::string& key, const Node& value, const std::string& at) {
      if (value.kind == Node::Kind::kString) {
        out[key] = value.text;
      } else if (kMayBeMissing && value.is_null()) {
        out[key];
      } else {
        wrong(value, at, kMayBeMissing ? "expected text or null" : "expected text");
      }
    });
  }
  std::map<std::string, Node> nodes(const Node* node, const std::string& path) {
    std::map<std::string, Node> out;
    members(node, path,
            [&](const std::string& key, const Node& value, const std::string&) { out.emplace(key, value); });
    return out;
  }

  void file(const Node& document) {
    const Node* cases = nullptr;
    std::string formula;
    object(&document, "", [&](Binder& b) {
      b.field("plugins", file_.plugins, "", "");
      b.field("formula", formula, "", "");
      b.node("cases", cases, "");
    });
    if (file_.plugins.empty()) wrong(document, "plugins", "name the plugin types that the cases are about");
    if (cases == nullptr || cases->items.empty()) wrong(document, "cases", "there are none");
    items(cases, "cases", [&](const Node& node, const std::string& path) { one_case(node, path); });
  }

  void one_case(const Node& node, const std::string& path) {
    Case out;
    out.file = file_.stem;
    out.line = node.line;
    const Node *configuration = nullptr, *given = nullptr, *endpoints = nullptr, *steps = nullptr;
    const Node *request = nullptr, *answer = nullptr, *expect = nullptr, *predictor = nullptr;
    object(&node, path, [&](Binder& b) {
      b.field("name", out.name, "", "");
      b.node("configuration", configuration, "");
      b.field("refusedConfiguration", out.refused_config, "", "");
      b.field("warnings", out.warnings, "", "");
      b.node("given", given, "");
      b.node("endpoints", endpoints, "");
      b.field("draws", out.draws, "", "");
      b.field("together", out.together, "", "");
      b.node("predictor", predictor, "");
      b.node("steps", steps, "");
      b.node("request", request, "");
      b.node("answer", answer, "");
      b.node("expect", expect, "");
    });
    if (out.name.empty()) wrong(node, path + ".name", "a case needs a name");
    at_least(0, out.draws, node, path + ".draws");
    if (predictor != nullptr) {
      out.together = true;
      out.predictor = predicting(*predictor, path + ".predictor");
    }
    if (configuration != nullptr) out.configuration = *configuration;
    out.given = nodes(given, path + ".given");
    std::vector<NamedEndpoint> pool;
    change(endpoints, path + ".endpoints", true, pool);
    endpoint_names_.clear();
    for (const NamedEndpoint& endpoint : pool) endpoint_names_.push_back(endpoint.name);
    if (steps == nullptr) {
      if (expect != nullptr || request != nullptr || answer != nullptr) {
        Step step;
        step.line = node.line;
        step.endpoints = pool;
        fill_step(request, answer, expect, path, step);
        out.steps.push_back(std::move(step));
      }
    } else if (request != nullptr || answer != nullptr || expect != nullptr) {
      wrong(node, path, "request, answer and expect stand in the steps where there are steps");
    }
    items(steps, path + ".steps", [&](const Node& step_node, const std::string& at) {
      Step step;
      step.line = step_node.line;
      const Node *changed = nullptr, *first_token = nullptr, *after = nullptr;
      request = answer = expect = nullptr;
      object(&step_node, at, [&](Binder& b) {
        b.field("afterMs", step.after_ms, "", "");
        b.field("repeat", step.repeat, "", "");
        b.field("hold", step.hold, "", "");
        b.node("endpoints", changed, "");
        b.node("request", request, "");
        b.node("answer", answer, "");
        b.node("expect", expect, "");
        b.node("inFlightAfterFirstToken", first_token, "");
        b.node("inFlightAfterAnswer", after, "");
      });
      at_least(1, step.repeat, step_node, at + ".repeat");
      change(changed, at + ".endpoints", false, pool);
      step.endpoints = pool;
      if (first_token != nullptr) no_empty(*first_token, at + ".inFlightAfterFirstToken");
      if (after != nullptr) no_empty(*after, at + ".inFlightAfterAnswer");
      step.after_first_token = tables(first_token, at + ".inFlightAfterFirstToken");
      step.after_answer = tables(after, at + ".inFlightAfterAnswer");
      fill_step(request, answer, expect, at, step);
      out.steps.push_back(std::move(step));
    });
    for (const Step& step : out.steps) check_use(node, path, out, step);
    const bool expects = std::any_of(out.steps.begin(), out.steps.end(), [](const Step& step) {
      return step.expect || !step.after_first_token.empty() || !step.after_answer.empty();
    });
    if (out.refused_config) {
      if (!out.steps.empty() || !out.warnings.empty())
        wrong(node, path, "nothing else is looked at where the configuration is refused");
    } else if (!expects && out.warnings.empty()) {
      wrong(node, path, "the case expects nothing");
    }
    file_.cases.push_back(std::move(out));
  }

  PredictorInput predicting(const Node& node, const std::string& path) {
    PredictorInput out;
    const Node *request = nullptr, *answer = nullptr;
    object(&node, path, [&](Binder& b) {
      b.field("url", out.url, "", "");
      b.node("request", request, "");
      b.field("status", out.status, "", "");
      b.node("answer", answer, "");
    });
    if (request != nullptr) out.request = *request;
    if (answer != nullptr) out.answer = answer->to_json();
    return out;
  }

  // Nothing may be expected that is never looked at.
  void check_use(const Node& node, const std::string& path, const Case& out, const Step& step) {
    const bool later = !step.after_first_token.empty() || !step.after_answer.empty();
    if (out.together && (step.after_ms != 0 || step.endpoints.size() != out.steps[0].endpoints.size()))
      wrong(node, path, "what comes together finds the same endpoints at the same time");
    if (out.draws > 0) {
      if (out.steps.size() != 1 || step.answer || step.hold || later)
        wrong(node, path, "draws are of one request without an answer");
      if (!step.expect) return wrong(node, path, "draws need an expectation");
      const Expectation& e = *step.expect;
      if (e.destination || !e.request_headers.empty() || !e.data.empty() || !e.in_flight.empty() ||
          e.fairness_id || e.fallback || e.prompt_tokens || e.refused || e.ran)
        wrong(node, path, "of draws only the winner, filtered, scores, totals and profiles are looked at");
      return;
    }
    if (step.expect && (step.expect->winners.size() > 1 || !step.expect->shares.empty()))
      wrong(node, path, "several winners need draws");
    if (!step.answer && step.expect &&
        (!step.expect->response_headers.empty() || !step.expect->metadata.empty()))
      wrong(node, path, "headers and metadata of an answer need one");
    if (!step.answer && !step.after_first_token.empty()) wrong(node, path, "a first token needs an answer");
    if (step.hold && !step.after_answer.empty()) wrong(node, path, "a request that is held doesn't end");
  }

  // Endpoints by name: made in a case, changed in a step (null: gone).
  void change(const Node* node, const std::string& path, bool make, std::vector<NamedEndpoint>& pool) {
    members(node, path, [&](const std::string& name, const Node& value, const std::string& at) {
      auto found =
          std::find_if(pool.begin(), pool.end(), [&](const NamedEndpoint& e) { return e.name == name; });
      if (!make && value.is_null()) {
        if (found == pool.end()) return wrong(value, at, "there is no such endpoint");
        pool.erase(found);
        return;
      }
      if (found == pool.end()) {
        const auto former = std::find(endpoint_names_.begin(), endpoint_names_.end(), name);
        if (!make && former == endpoint_names_.end()) return wrong(value, at, "there is no such endpoint");
        const size_t place = make ? pool.size() : static_cast<size_t>(former - endpoint_names_.begin());
        NamedEndpoint fresh;
        fresh.name = name;
        fresh.input.address = fmt::format("10.0.0.{}", place + 1);
        pool.push_back(std::move(fresh));
        found = std::prev(pool.end());
      }
      endpoint(&value, at, found->input);
    });
  }

  void endpoint(const Node* node, const std::string& path, EndpointInput& out) {
    const Node *labels = nullptr, *waiting = nullptr, *running = nullptr, *kv = nullptr;
    const Node *block_size = nullptr, *num_blocks = nullptr, *adapters = nullptr, *load = nullptr;
    const Node* pages = nullptr;
    object(node, path, [&](Binder& b) {
      b.field("namespace", out.ns, "", "");
      b.field("address", out.address, "", "");
      b.field("port", out.port, "", "");
      b.field("draining", out.draining, "", "");
      b.node("labels", labels, "");
      b.node("waiting", waiting, "");
      b.node("running", running, "");
      b.node("kvUsage", kv, "");
      b.node("cacheBlockSize", block_size, "");
      b.node("cacheNumBlocks", num_blocks, "");
      b.node("adapters", adapters, "");
      b.node("inFlight", load, "");
      b.node("pages", pages, "");
    });
    texts(labels, path + ".labels", out.labels);
    texts(pages, path + ".pages", out.pages);
    signal(waiting, path + ".waiting", out.waiting);
    signal(running, path + ".running", out.running);
    signal(kv, path + ".kvUsage", out.kv_usage);
    signal(block_size, path + ".cacheBlockSize", out.block_size);
    signal(num_blocks, path + ".cacheNumBlocks", out.num_blocks);
    if (adapters != nullptr) {
      object(adapters, path + ".adapters", [&](Binder& b) {
        b.field("running", out.adapters_running, "", "");
        b.field("waiting", out.adapters_waiting, "", "");
        b.field("max", out.adapters_max, "", "");
      });
    }
    if (load != nullptr) {
      object(load, path + ".inFlight", [&](Binder& b) {
        b.field("requests", out.requests_in_flight, "", "");
        b.field("tokens", out.tokens_in_flight, "", "");
        b.field("sentSince", out.sent_since, "", "");
      });
    }
  }

  // A number; "unknown"; or {value: 3, state: stale}.
  void signal(const Node* node, const std::string& path, SignalInput& out) {
    if (node == nullptr) return;
    if (const std::optional<double> value = number_of(*node)) {
      out = {*value, SignalState::kFresh};
      return;
    }
    if (node->kind == Node::Kind::kString && node->text == "unknown") {
      out = {0, SignalState::kNeverSeen};
      return;
    }
    if (!node->is_map()) return wrong(*node, path, "expected a number, unknown, nan or {value, state}");
    std::string state = "fresh";
    object(node, path, [&](Binder& b) {
      b.field("value", out.value, "", "");
      b.field("state", state, "", "");
      b.field("ageMs", out.age_ms, "", "");
    });
    for (const SignalState s : {SignalState::kNeverSeen, SignalState::kFresh, SignalState::kStale,
                                SignalState::kNameMissing, SignalState::kEndpointDown}) {
      if (signal_state_name(s) == state) {
        out.state = s;
        return;
      }
    }
    wrong(*node, path + ".state", "there is no such state");
  }

  void fill_step(const Node* request_node, const Node* answer_node, const Node* expect_node,
                 const std::string& path, Step& step) {
    if (request_node != nullptr) request(request_node, path + ".request", step.request);
    if (answer_node != nullptr) {
      const Node* usage = nullptr;
      AnswerInput answer;
      object(answer_node, path + ".answer", [&](Binder& b) {
        b.field("status", answer.status, "", "");
        b.field("stream", answer.stream, "", "");
        b.field("firstTokenMs", answer.first_token_ms, "", "");
        b.field("chunks", answer.chunks, "", "");
        b.field("chunkGapMs", answer.chunk_gap_ms, "", "");
        b.field("loadBalancerMetadata", answer.lb_metadata, "", "");
        b.field("servedEndpoint", answer.served, "", "");
        b.node("usage", usage, "");
      });
      at_least(1, answer.chunks, *answer_node, path + ".answer.chunks");
      if (usage != nullptr) answer.usage = usage->to_json();
      step.answer = std::move(answer);
    }
    if (expect_node != nullptr) step.expect = expectation(expect_node, path + ".expect");
  }

  void request(const Node* node, const std::string& path, RequestInputs& out) {
    const Node *headers = nullptr, *prompt = nullptr, *tokens = nullptr, *body = nullptr, *subset = nullptr;
    object(node, path, [&](Binder& b) {
      b.field("id", out.id, "", "");
      b.field("path", out.path, "", "");
      b.field("model", out.model, "", "");
      b.field("priority", out.priority, "", "");
      b.node("headers", headers, "");
      b.node("prompt", prompt, "");
      b.node("tokens", tokens, "");
      b.node("subset", subset, "");
      b.node("body", body, "");
    });
    texts(headers, path + ".headers", out.headers);
    if (subset != nullptr) {
      out.subset.emplace();
      items(subset, path + ".subset", [&](const Node& item, const std::string& at) {
        if (std::find(endpoint_names_.begin(), endpoint_names_.end(), item.text) == endpoint_names_.end())
          return wrong(item, at, "there is no such endpoint");
        out.subset->push_back(item.text);
      });
    }
    if (body != nullptr) {
      out.body = body->to_json();
      return;
    }
    if (prompt != nullptr) {
      Node model;
      model.kind = Node::Kind::kString;
      model.text = out.model;
      out.body = "{\"model\":" + model.to_json() + ",\"prompt\":" + prompt->to_json() + "}";
      return;
    }
    if (tokens == nullptr) return;
    std::string prompts;
    items(tokens, path + ".tokens", [&](const Node& one, const std::string& at) {
      std::string ids;
      items(&one, at, [&](const Node& run, const std::string& run_at) {
        int64_t token = 0;
        int64_t times = 1;
        object(&run, run_at, [&](Binder& b) {
          b.field("token", token, "", "");
          b.field("times", times, "", "");
        });
        at_least(1, times, run, run_at + ".times");
        for (int64_t i = 0; i < times; ++i) ids += (ids.empty() ? "" : ",") + std::to_string(token);
      });
      prompts += (prompts.empty() ? "[" : ",[") + ids + "]";
    });
    out.body = "{\"model\":\"" + out.model + "\",\"prompt\":[" + prompts + "]}";
  }

  ProfileExpectation profile(const Node* node, const std::string& path) {
    ProfileExpectation out;
    const Node *scores = nullptr, *totals = nullptr, *filtered = nullptr;
    object(node, path, [&](Binder& b) {
      b.node("filtered", filtered, "");
      b.node("scores", scores, "");
      b.node("totals", totals, "");
      b.field("picked", out.picked, "", "");
    });
    fill_profile(filtered, scores, totals, path, out);
    return out;
  }
  void fill_profile(const Node* filtered, const Node* scores, const Node* totals, const std::string& path,
                    ProfileExpectation& out) {
    if (filtered != nullptr) {
      out.filtered.emplace();
      items(filtered, path + ".filtered", [&](const Node& item, const std::string& at) {
        known(item, at, item.text);
        out.filtered->push_back(item.text);
      });
    }
    members(scores, path + ".scores",
            [&](const std::string& plugin, const Node& value, const std::string& at) {
              out.scores[plugin] = numbers(&value, at);
              for (const auto& [name, score] : out.scores[plugin]) known(value, at, name);
            });
    out.totals = numbers(totals, path + ".totals");
    for (const auto& [name, total] : out.totals) known(*totals, path + ".totals", name);
  }
  void known(const Node& node, const std::string& path, const std::string& name) {
    if (std::find(endpoint_names_.begin(), endpoint_names_.end(), name) == endpoint_names_.end())
      wrong(node, path, "there is no endpoint " + name);
  }

  // An empty map, or list of winners, would look like an expectation and look at nothing.
  void no_empty(const Node& node, const std::string& path) {
    if (node.is_map() && node.members.empty()) wrong(node, path, "is empty");
    for (const auto& [key, value] : node.members) no_empty(value, path + "." + key);
  }

  Expectation expectation(const Node* node, const std::string& path) {
    Expectation out;
    if (node->members.empty()) return out;  // the request is decided
    no_empty(*node, path);
    const Node *scores = nullptr, *totals = nullptr, *profiles = nullptr, *winner = nullptr;
    const Node *filtered = nullptr, *request_headers = nullptr, *response_headers = nullptr;
    const Node *metadata = nullptr, *data = nullptr, *load = nullptr, *refused = nullptr, *ran = nullptr;
    object(node, path, [&](Binder& b) {
      b.node("filtered", filtered, "");
      b.node("scores", scores, "");
      b.node("totals", totals, "");
      b.node("profiles", profiles, "");
      b.node("ran", ran, "");
      b.node("winner", winner, "");
      b.field("destination", out.destination, "", "");
      b.node("requestHeaders", request_headers, "");
      b.node("responseHeaders", response_headers, "");
      b.node("metadata", metadata, "");
      b.node("data", data, "");
      b.node("inFlight", load, "");
      b.field("fairnessId", out.fairness_id, "", "");
      b.field("fallback", out.fallback, "", "");
      b.field("promptTokens", out.prompt_tokens, "", "");
      b.node("refused", refused, "");
    });
    fill_profile(filtered, scores, totals, path, out.primary);
    members(profiles, path + ".profiles",
            [&](const std::string& name, const Node& value, const std::string& at) {
              out.profiles.emplace(name, profile(&value, at));
            });
    if (ran != nullptr) {
      out.ran.emplace();
      items(ran, path + ".ran", [&](const Node& item, const std::string&) { out.ran->push_back(item.text); });
    }
    if (winner != nullptr) {
      if (winner->is_map()) {
        out.shares = numbers(winner, path + ".winner");
      } else if (winner->is_list()) {
        if (winner->items.empty()) wrong(*winner, path + ".winner", "is empty");
        items(winner, path + ".winner", [&](const Node& item, const std::string& at) {
          known(item, at, item.text);
          out.winners.push_back(item.text);
        });
      } else {
        known(*winner, path + ".winner", winner->text);
        out.winners.push_back(winner->text);
      }
    }
    texts(request_headers, path + ".requestHeaders", out.request_headers);
    texts(response_headers, path + ".responseHeaders", out.response_headers);
    members(metadata, path + ".metadata",
            [&](const std::string& key, const Node& value, const std::string& at) {
              const std::optional<double> parsed = number_of(value);
              if (!parsed && !value.is_null()) return wrong(value, at, "expected a number or null");
              out.metadata[key] = parsed;
            });
    out.data = nodes(data, path + ".data");
    out.in_flight = tables(load, path + ".inFlight");
    if (refused != nullptr) {
      out.refused.emplace();
      object(refused, path + ".refused", [&](Binder& b) {
        b.field("status", out.refused->status, "", "");
        b.field("message", out.refused->message, "", "");
        b.field("reason", out.refused->reason, "", "");
      });
    }
    return out;
  }

  VectorFile file_;
  std::vector<std::string> endpoint_names_;
  std::vector<std::string> errors_;
};

}  // namespace

std::optional<double> number_of(const Node& node) {
  if (node.kind == Node::Kind::kInt || node.kind == Node::Kind::kDouble) return node.number;
  if (node.kind == Node::Kind::kString && node.text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

Result<VectorFile> read_file(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = 1U << 20U;
  Result<std::string> text = config::read_file(path.string(), kMaxBytes);
  if (!text.ok()) return std::move(text).error();
  return decode_file(*text, path.stem().string());
}

Result<VectorFile> decode_file(std::string_view text, const std::string& stem) {
  return Decoder::decode(text, stem);
}

}  // namespace penstock::assembly::vectors
