#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "cli/admin_client.h"
#include "cli/commands.h"
#include "config/files.h"
#include "io/http_client.h"

namespace penstock::cli {

namespace {

constexpr size_t kMaxBodyBytes = 64 << 20;  // as the admin page takes

struct ExplainFlags {
  std::string admin{kDefaultAdminUrl};
  std::string body_file;
  std::string path = "/v1/chat/completions";
  std::vector<std::string> headers;
  bool json = false;
};

using Json = nlohmann::json;

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return "";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

void append_profile(std::string& out, const Json& decision, const Json& profile) {
  // Of this profile: a prefill worker is not the endpoint that the request is sent to.
  const std::string picked = text_of(profile, "picked");
  const std::string picker = text_of(profile, "picker");
  const auto explanation = [&](const std::string& endpoint, const char* role, const std::string& plugin) {
    std::string text;
    for (const Json& line : decision.value("explanations", Json::array())) {
      if (line.value("endpoint", "") == endpoint && line.value(role, "") == plugin &&
          line.value("profile", "") == text_of(profile, "profile")) {
        text = text_of(line, "text");
      }
    }
    return text;
  };
  out += fmt::format("\nprofile {}: {} candidates, {}\n", text_of(profile, "profile"),
                     text_of(profile, "candidates"), picked.empty() ? "none picked" : "picked by " + picker);
  if (const std::string decided_by = text_of(profile, "decided_by"); !decided_by.empty()) {
    out += fmt::format("  {} of {} candidates have fresh signals: decided by {}\n",
                       text_of(profile, "fresh_candidates"), text_of(profile, "candidates"), decided_by);
  }
  for (const Json& filter : profile.value("filters", Json::array())) {
    out += fmt::format("  filter {}: {} -> {}\n", text_of(filter, "plugin"), text_of(filter, "before"),
                       text_of(filter, "after"));
  }
  for (const Json& candidate : profile.value("top", Json::array())) {
    const std::string endpoint = text_of(candidate, "endpoint");
    out += fmt::format("{} {}  total {:.4f}\n", endpoint == picked ? " *" : "  ", endpoint,
                       candidate.value("total", 0.0));
    for (const Json& scorer : profile.value("scorers", Json::array())) {
      const std::string plugin = text_of(scorer, "plugin");
      const double weight = scorer.value("weight", 1.0);
      const double score = candidate.value("scores", Json::object()).value(plugin, 0.0);
      const double cap = scorer.value("max_contribution", std::numeric_limits<double>::infinity());
      const double part = std::clamp(score * weight, -cap, cap);
      out += fmt::format("       {:<30} {:.4f} x {} {} {:.4f}   {}\n", plugin, score, weight,
                         part == score * weight ? "=" : "held at", part,
                         explanation(endpoint, "scorer", plugin));
    }
    if (const std::string why = explanation(endpoint, "picker", picker); !why.empty())
      out += fmt::format("       {:<30} {}\n", picker, why);
  }
}

// "model m, pool p": those of the fields that the decision got as far as to know. A number that is 0 was
// never set where `unset_is_zero` says so.
struct HeadField {
  const char* label;
  const char* key;
  const char* after = "";
  bool unset_is_zero = false;
};

std::string head_line(const Json& decision, std::initializer_list<HeadField> fields) {
  std::string out;
  for (const HeadField& field : fields) {
    const std::string text = text_of(decision, field.key);
    if (text.empty() || (field.unset_is_zero && text == "0")) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{}{}{}", field.label, text, field.after);
  }
  return out.empty() ? out : out + '\n';
}

void append_signal(std::string& out, const Json& signal) {
  // An endpoint that is down has its last value, if it ever had one.
  const bool known = signal.contains("age_ms");
  std::vector<std::string> rest;
  if (known) rest.push_back(fmt::format("age {:.0f} ms", signal.value("age_ms", 0.0)));
  if (signal.contains("influence"))
    rest.push_back(fmt::format("influence {:.2f}", signal.value("influence", 0.0)));
  if (signal.value("sent_since", 0) > 0) rest.push_back(text_of(signal, "sent_since") + " sent since");
  const double value = signal.value("value", Json()).is_number() ? signal.value("value", 0.0) : 0;
  const bool whole = value == std::floor(value);
  out += fmt::format("  {:<36} {:<18} {:>10} {:<9} {:<13} {}\n", text_of(signal, "endpoint"),
                     text_of(signal, "signal"), !known ? "-" : fmt::format("{:.{}f}", value, whole ? 0 : 4),
                     text_of(signal, "unit"), text_of(signal, "state"), fmt::join(rest, ", "));
}

// Who is not simply healthy: "draining, asleep, ejected (status), 4766 ms left".
void append_health(std::string& out, const Json& endpoints) {
  std::string_view title = "\nnot healthy\n";
  for (const Json& endpoint : endpoints) {
    std::vector<std::string> why;
    if (endpoint.value("draining", false)) why.emplace_back("draining");
    if (endpoint.value("asleep", false)) why.emplace_back("asleep");
    if (const std::string state = text_of(endpoint, "health"); state != "healthy")
      why.push_back(state + " (" + text_of(endpoint, "reason") + ")");
    if (endpoint.contains("ejected_ms")) why.push_back(text_of(endpoint, "ejected_ms") + " ms left");
    if (why.empty()) continue;
    out += std::exchange(title, {});
    out += fmt::format("  {:<36} {}\n", text_of(endpoint, "endpoint"), fmt::join(why, ", "));
  }
}

// The decision as a person reads it, a refusal's reason first. Anything unexpected in it is left out, not
// guessed.
std::string render(const Json& decision) {
  std::string out;
  const std::string error = text_of(decision, "error");
  if (!error.empty()) out += "refused: " + error + "\n\n";
  out += head_line(decision, {{"model ", "model"},
                              {"sent as ", "target_model"},
                              {"pool ", "pool"},
                              {"", "prompt_tokens", " prompt tokens", !error.empty()},
                              {"priority ", "priority"},
                              {"fairness id ", "fairness_id"}});
  out += head_line(decision, {{"policy epoch ", "policy_epoch", "", true},
                              {"membership epoch ", "membership_epoch", "", true},
                              {"signal epoch ", "signal_epoch", "", true},
                              {"fallback ", "fallback"}});
  for (const Json& profile : decision.value("profiles", Json::array()))
    append_profile(out, decision, profile);
  if (!decision.value("signals", Json::array()).empty()) out += "\nsignals\n";
  for (const Json& signal : decision.value("signals", Json::array())) append_signal(out, signal);
  append_health(out, decision.value("health", Json::array()));
  if (const std::string as = text_of(decision, "picked_as"); !as.empty())
    out += fmt::format("\npicked as: {}\n", as);
  if (const std::string winner = text_of(decision, "endpoint"); !winner.empty())
    out += fmt::format("\nwinner: {} ({})\n", winner, text_of(decision, "address"));
  return out;
}

int explain(const ExplainFlags& flags) {
  if (!flags.path.starts_with('/')) {
    complain("--path '" + flags.path + "' does not begin with '/'");
    return kUsage;
  }
  auto body = config::read_file(flags.body_file == "-" ? "/dev/stdin" : flags.body_file, kMaxBodyBytes);
  if (!body.ok()) {
    complain("--body: " + body.error().message);
    return kFailed;
  }
  std::vector<std::pair<std::string, std::string>> owned{{"content-type", "application/json"}};
  for (const std::string& header : flags.headers) {
    const size_t colon = header.find(':');
    if (colon == std::string::npos || colon == 0) {
      complain("--header '" + header + "': wanted 'name: value'");
      return kUsage;
    }
    owned.emplace_back(ascii_lower(trim(std::string_view(header).substr(0, colon))),
                       trim(std::string_view(header).substr(colon + 1)));
  }
  std::vector<io::HeaderField> fields;
  for (const auto& [name, value] : owned) fields.push_back({name, value});
  const std::string base = admin_base(flags.admin);
  const std::string url = base + "/debug/explain?path=" + percent_encode(flags.path);
  const auto answer = io::http_request_blocking("POST", url, *body, fields);
  if (!answer.ok()) {
    complain(base + ": " + answer.error().message);
    return kFailed;
  }
  const bool answered = answer->status == 200;
  const Json page = Json::parse(answer->body, nullptr, false);
  const Json decision = answered ? page : Json();
  if (const std::string why = answered ? std::string() : reason_of(answer->body); !why.empty()) {
    complain("refused: " + why);
  } else if (!answered) {
    complain(fmt::format("{} answered {}{}\n{}", url, answer->status,
                         answer->status == 404 ? "; is it the admin address?" : "", trim(answer->body)));
  } else if (decision.is_object() && !flags.json) {
    std::fputs(render(decision).c_str(), stdout);
  } else {
    std::fwrite(answer->body.data(), 1, answer->body.size(), stdout);
    if (!answer->body.ends_with('\n')) std::fputc('\n', stdout);
  }
  const bool refused = decision.is_object() && !text_of(decision, "error").empty();
  return answered && !refused ? kOk : kFailed;
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("explain",
                                     "Ask a running penstock where a body would go, without sending it on: "
                                     "candidates, filters, each score with "
                                     "its inputs, units and ages, and the winner.");
  auto flags = std::make_shared<ExplainFlags>();
  command->add_option("--admin", flags->admin, "Admin address of the running process")->capture_default_str();
  command->add_option("--body", flags->body_file, "File with the request body, '-' for standard input")
      ->required();
  command->add_option("--path", flags->path, "Path the body would be POSTed to")->capture_default_str();
  command->add_option("--header", flags->headers, "Header of the request, 'name: value'; repeatable");
  command->add_flag("--json", flags->json, "Print the decision record as JSON");
  command->footer(
      "Exit code 1: the request would be refused, or nobody answers.\nExample: penstock explain --admin "
      "http://127.0.0.1:9090 --body request.json");
  command->callback([flags, &exit_code] { exit_code = explain(*flags); });
}

}  // namespace penstock::cli
