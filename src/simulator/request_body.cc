#include "simulator/request_body.h"

#include <simdjson.h>

#include <cmath>
#include <limits>

#include "simulator/tokenizer.h"

namespace penstock::simulator {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

std::string describe(const element& value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "<list of " + std::to_string(value.get_array().value_unsafe().size()) + " items>";
    case simdjson::dom::element_type::OBJECT:
      return "<dict of " + std::to_string(value.get_object().value_unsafe().size()) + " items>";
    case simdjson::dom::element_type::NULL_VALUE:
      return "None";
    case simdjson::dom::element_type::BOOL:
      return value.get_bool().value_unsafe() ? "True" : "False";
    case simdjson::dom::element_type::STRING:
      return std::string(value.get_string().value_unsafe().substr(0, 200));
    default:
      return simdjson::minify(value);
  }
}

ApiError validation(std::string_view type, std::string_view location, std::string_view message,
                    std::string_view input, std::string_view context = {}) {
  ApiError error;
  error.type = "Bad Request";
  error.param = location;
  error.message = "1 validation error:\n  {'type': '" + std::string(type) + "', 'loc': '" +
                  std::string(location) + "', 'msg': '" + std::string(message) + "', 'input': '" +
                  std::string(input) + "'" + std::string(context) + "}";
  return error;
}

ApiError bad_request(std::string message, std::string param = {}) {
  ApiError error;
  if (!param.empty()) message += " (parameter=" + param + ")";
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

// The last member of that name, as the engines' JSON reader takes it.
bool last_member(const object& members, std::string_view name, element& out) {
  bool found = false;
  for (const auto& [key, value] : members) {
    if (key == name) {
      out = value;
      found = true;
    }
  }
  return found;
}

// Reads fields of one body; the first error wins and stops the rest.
class Fields {
 public:
  Fields(const object& body, std::string prefix = "body") : body_(body), prefix_(std::move(prefix)) {}

  std::optional<ApiError> error;

  void boolean(const element& value, std::string_view name, bool& out) {
    if (value.is_null()) return;
    if (value.is_bool())
      out = value.get_bool().value_unsafe();
    else
      fail(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", value);
  }
  void integer(const element& value, std::string_view name, std::optional<int64_t>& out) {
    if (value.is_null()) return;
    int64_t number = 0;
    double real = 0;
    if (value.get(number) == simdjson::SUCCESS)
      out = number;
    else if (value.get(real) == simdjson::SUCCESS && std::abs(real) < 9e15 && std::trunc(real) == real)
      out = static_cast<int64_t>(real);
    else if (value.is_string())
      fail(name, "int_parsing", "Input should be a valid integer, unable to parse string as an integer",
           value);
    else
      fail(name, "int_type", "Input should be a valid integer", value);
  }
  void unsigned_integer(const element& value, std::string_view name, uint32_t& out, int64_t low) {
    std::optional<int64_t> number;
    integer(value, name, number);
    if (error || !number) return;
    if (*number < low || *number > std::numeric_limits<int32_t>::max())
      fail(name, "greater_than_equal", "Input should be greater than or equal to " + std::to_string(low),
           value);
    else
      out = static_cast<uint32_t>(*number);
  }
  void number(const element& value, std::string_view name, double& out) {
    if (value.is_null()) return;
    if (value.is_number())
      out = value.get_double().value_unsafe();
    else
      fail(name, value.is_string() ? "float_parsing" : "float_type", "Input should be a valid number", value);
  }
  void text(const element& value, std::string_view name, std::string& out) {
    if (value.is_null()) return;
    if (value.is_string())
      out = value.get_string().value_unsafe();
    else
      fail(name, "string_type", "Input should be a valid string", value);
  }
  void fail(std::string_view name, std::string_view type, std::string_view message, const element& value) {
    if (!error) error = validation(type, prefix_ + "." + std::string(name), message, describe(value));
  }
  void missing(std::string_view name) {
    if (!error)
      error = validation("missing", prefix_ + "." + std::string(name), "Field required",
                         "<dict of " + std::to_string(body_.size()) + " items>");
  }
  void refuse(ApiError refusal) {
    if (!error) error = std::move(refusal);
  }

 private:
  const object& body_;
  std::string prefix_;
};

void stream_options(Fields& f, const element& value, EngineRequest& out) {
  if (value.is_null()) return;
  object options;
  if (value.get(options) != simdjson::SUCCESS) {
    f.fail("stream_options", "model_attributes_type",
           "Input should be a valid dictionary or object to extract fields from", value);
    return;
  }
  out.has_stream_options = true;
  for (const auto& [key, option] : options) {
    if (key == "include_usage") f.boolean(option, "stream_options.include_usage", out.include_usage);
    if (key == "continuous_usage_stats")
      f.boolean(option, "stream_options.continuous_usage_stats", out.continuous_usage);
  }
}

void stop_strings(Fields& f, const element& value, EngineRequest& out) {
  if (value.is_null()) return;
  if (value.is_string()) {
    out.stop.emplace_back(value.get_string().value_unsafe());
  } else if (value.is_array()) {
    const array items = value.get_array().value_unsafe();
    for (const element item : items) {
      if (!item.is_string()) return f.fail("stop", "string_type", "Input should be a valid string", item);
      if (out.stop.size() >= RequestReader::kMaxStops)
        return f.refuse(bad_request("too many stop strings", "stop"));
      out.stop.emplace_back(item.get_string().value_unsafe());
    }
  } else {
    f.fail("stop", "string_type", "Input should be a valid string", value);
  }
  std::erase(out.stop, "");
}

// A list of integers as tokens; false (and an error) when it is none.
bool token_list(Fields& f, std::string_view name, const array& items, std::vector<uint32_t>& tokens) {
  for (const element item : items) {
    uint64_t id = 0;
    if (item.get(id) != simdjson::SUCCESS) {
      f.fail(name, "int_type", "Input should be a valid integer", item);
      return false;
    }
    if (id >= kVocabularySize) {
      ApiError error;
      error.message = "Token id " + std::to_string(id) + " is out of vocabulary";
      f.refuse(std::move(error));
      return false;
    }
    tokens.push_back(static_cast<uint32_t>(id));
  }
  return true;
}

// `prompt` and `input` in all their forms: text, texts, token ids, lists of token ids.
void prompt_forms(Fields& f, std::string_view name, const element& value, EngineRequest& out) {
  if (value.is_null()) return;
  if (value.is_string()) {
    tokenize(value.get_string().value_unsafe(), out.add_prompt());
    if (out.echo_text.empty()) out.echo_text = value.get_string().value_unsafe();
    return;
  }
  array items;
  if (value.get(items) != simdjson::SUCCESS)
    return f.fail(name, "string_type", "Input should be a valid string", value);
  if (items.size() == 0) return;
  if (items.at(0).is_number()) {
    token_list(f, name, items, out.add_prompt());
    return;
  }
  for (const element item : items) {
    if (out.prompt_count >= RequestReader::kMaxPrompts)
      return f.refuse(bad_request("too many prompts in one request", std::string(name)));
    array ids;
    if (item.is_string())
      tokenize(item.get_string().value_unsafe(), out.add_prompt());
    else if (item.get(ids) == simdjson::SUCCESS && !token_list(f, name, ids, out.add_prompt()))
      return;
    else if (!item.is_array())
      return f.fail(name, "string_type", "Input should be a valid string", item);
  }
}

// The content of a message or item: text, or parts.
void content_tokens(Fields& f, const element& value, EngineRequest& out, std::vector<uint32_t>& tokens) {
  if (value.is_null()) return;
  if (value.is_string()) return tokenize(value.get_string().value_unsafe(), tokens);
  array parts;
  if (value.get(parts) != simdjson::SUCCESS)
    return f.fail("messages", "string_type", "Input should be a valid string", value);
  for (const element part : parts) {
    std::string_view text;
    std::string_view type;
    if (part.get(text) == simdjson::SUCCESS || part["text"].get(text) == simdjson::SUCCESS) {
      tokenize(text, tokens);
    } else if (part["type"].get(type) == simdjson::SUCCESS &&
               (type == "image_url" || type == "image" || type == "input_audio" || type == "audio_url" ||
                type == "video_url" || type == "input_image")) {
      out.prompt_is_media = true;
    } else {
      tokenize(simdjson::minify(part), tokens);
    }
  }
}

void message_tokens(Fields& f, const element& message, EngineRequest& out, std::vector<uint32_t>& tokens) {
  if (!message.is_object())
    return f.fail("messages", "dict_type", "Input should be a valid dictionary", message);
  std::string_view role;
  if (message["role"].get(role) != simdjson::SUCCESS) role = "user";
  begin_message(role, tokens);
  element content;
  if (message["content"].get(content) == simdjson::SUCCESS) content_tokens(f, content, out, tokens);
  element calls;
  if (message["tool_calls"].get(calls) == simdjson::SUCCESS && !calls.is_null())
    tokenize(simdjson::minify(calls), tokens);
  end_message(tokens);
}

// The members of `body` that shape a conversation's prompt, in the order the template writes them.
void conversation(Fields& f, const object& body, std::string_view list_name, std::string_view system_name,
                  EngineRequest& out) {
  element list;
  if (!last_member(body, list_name, list)) return f.missing(list_name);
  std::vector<uint32_t>& tokens = out.add_prompt();
  element value;
  if (last_member(body, "tools", value) && value.is_array() && value.get_array().value_unsafe().size() > 0) {
    begin_message("tools", tokens);
    tokenize(simdjson::minify(value), tokens);
    end_message(tokens);
  }
  if (!system_name.empty() && last_member(body, system_name, value) && !value.is_null()) {
    begin_message("system", tokens);
    content_tokens(f, value, out, tokens);
    end_message(tokens);
  }
  if (list.is_string()) {
    begin_message("user", tokens);
    tokenize(list.get_string().value_unsafe(), tokens);
    end_message(tokens);
  } else if (list.is_array()) {
    const array messages = list.get_array().value_unsafe();
    if (messages.size() == 0) {
      ApiError error;
      error.message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
      return f.refuse(std::move(error));
    }
    for (const element message : messages) message_tokens(f, message, out, tokens);
  } else {
    f.fail(list_name, "list_type", "Input should be a valid list", list);
  }
  begin_message("assistant", tokens);
}

void sampling_field(Fields& f, std::string_view key, const element& value, EngineRequest& out) {
  if (key == "max_tokens")
    f.integer(value, key, out.max_tokens);
  else if (key == "ignore_eos")
    f.boolean(value, key, out.ignore_eos);
  else if (key == "n")
    f.unsigned_integer(value, key, out.n, 1);
  else if (key == "temperature")
    f.number(value, key, out.temperature);
  else if (key == "top_p")
    f.number(value, key, out.top_p);
  else if (key == "stop")
    stop_strings(f, value, out);
  else if (key == "seed") {
    std::optional<int64_t> seed;
    f.integer(value, key, seed);
    out.seed = static_cast<uint64_t>(seed.value_or(0));
  }
}

void generation_field(Fields& f, EngineApi api, std::string_view key, const element& value,
                      EngineRequest& out) {
  if (key == "stream")
    f.boolean(value, key, out.stream);
  else if (key == "stream_options")
    stream_options(f, value, out);
  else if (key == "echo")
    f.boolean(value, key, out.echo);
  else if (key == "return_token_ids")
    f.boolean(value, key, out.return_token_ids);
  else if (key == "stream_interval")
    f.unsigned_integer(value, key, out.stream_interval, 1);
  else if (key == "request_id")
    f.text(value, key, out.request_id);
  else if (key == "previous_response_id")
    f.text(value, key, out.previous_response_id);
  else if (key == "store" && api == EngineApi::kResponses)
    f.boolean(value, key, out.store);
  else if (key == "max_output_tokens" && api == EngineApi::kResponses)
    f.integer(value, key, out.max_tokens);
  else if (key == "stop_sequences" && api == EngineApi::kMessages)
    stop_strings(f, value, out);
  else if (key == "sampling_params" && api == EngineApi::kGenerate) {
    object params;
    if (value.get(params) != simdjson::SUCCESS)
      return f.fail(key, "dict_type", "Input should be a valid dictionary", value);
    for (const auto& [name, param] : params) sampling_field(f, name, param, out);
  } else if (key == "cache_salt") {
    f.text(value, key, out.cache_salt);
    if (value.is_string() && out.cache_salt.empty())
      f.refuse(bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"));
  } else if (api != EngineApi::kGenerate) {
    sampling_field(f, key, value, out);
  }
}

void check_generation(Fields& f, EngineRequest& out) {
  if (f.error) return;
  if (out.has_stream_options && !out.stream)
    return f.refuse(bad_request("Stream options can only be defined when `stream=True`.", "stream_options"));
  if (out.temperature < 0) {
    std::string value = std::to_string(out.temperature);
    value.erase(value.find_last_not_of('0') + 1);
    if (value.back() == '.') value += '0';
    ApiError error;
    error.message =
        "temperature must be non-negative, got " + value + ". (parameter=temperature, value=" + value + ")";
    error.param = "temperature";
    return f.refuse(std::move(error));
  }
  if (out.max_tokens && *out.max_tokens < 1) {
    const std::string value = std::to_string(*out.max_tokens);
    ApiError error;
    error.message =
        "max_tokens must be at least 1, got " + value + ". (parameter=max_tokens, value=" + value + ")";
    error.param = "max_tokens";
    return f.refuse(std::move(error));
  }
  if (out.n > 16) f.refuse(bad_request("The simulated engine gives at most 16 choices", "n"));
}

}  // namespace

struct RequestReader::Impl {
  simdjson::dom::parser parser;
};

RequestReader::RequestReader() : impl_(std::make_unique<Impl>()) {}
RequestReader::~RequestReader() = default;

void EngineRequest::clear() {
  std::vector<std::vector<uint32_t>> kept = std::move(prompts);
  *this = EngineRequest{};
  prompts = std::move(kept);
}

std::vector<uint32_t>& EngineRequest::add_prompt() {
  if (prompt_count == prompts.size()) prompts.emplace_back();
  std::vector<uint32_t>& prompt = prompts[prompt_count++];
  prompt.clear();
  return prompt;
}

std::optional<ApiError> RequestReader::read(EngineApi api, std::string_view body, EngineRequest& out) {
  out.clear();
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return validation("missing", "body", "Field required", "None");
  element root;
  if (impl_->parser.parse(body.data(), body.size(), false).get(root) != simdjson::SUCCESS) {
    const std::string location = "body." + std::to_string(body.size());
    return validation("json_invalid", location, "JSON decode error", "<dict of 0 items>",
                      ", 'ctx': {'error': 'Expecting value'}");
  }
  object fields;
  if (root.get(fields) != simdjson::SUCCESS)
    return validation("model_attributes_type", "body",
                      "Input should be a valid dictionary or object to extract fields from", describe(root));

  Fields f(fields);
  const bool generates = api == EngineApi::kChat || api == EngineApi::kCompletions ||
                         api == EngineApi::kMessages || api == EngineApi::kResponses ||
                         api == EngineApi::kGenerate;
  std::optional<int64_t> completion_tokens;
  element prompt;
  bool has_prompt = false;
  for (const auto& [key, value] : fields) {
    if (key == "model")
      f.text(value, key, out.model);
    else if (key == "max_completion_tokens" && api == EngineApi::kChat)
      f.integer(value, key, completion_tokens);
    else if (generates)
      generation_field(f, api, key, value, out);
    else if (key == "return_token_strs" && api == EngineApi::kTokenize)
      f.boolean(value, key, out.return_token_texts);
    else if (key == "encoding_format" && api == EngineApi::kEmbeddings)
      out.base64 = value.is_string() && value.get_string().value_unsafe() == "base64";
    else if (key == "dimensions" && api == EngineApi::kEmbeddings)
      f.unsigned_integer(value, key, out.dimensions, 1);
    else if (key == "lora_name")
      f.text(value, key, out.adapter_name);
    else if (key == "lora_path")
      f.text(value, key, out.adapter_path);
    else if (key == "load_inplace")
      f.boolean(value, key, out.load_inplace);
    if (f.error) return f.error;
  }
  if (completion_tokens) out.max_tokens = completion_tokens;
  if (generates) check_generation(f, out);

  const auto take = [&](std::string_view name) {
    has_prompt = last_member(fields, name, prompt);
    if (has_prompt) prompt_forms(f, name, prompt, out);
    return has_prompt;
  };
  switch (api) {
    case EngineApi::kChat:
      conversation(f, fields, "messages", "", out);
      break;
    case EngineApi::kMessages:
      if (!out.max_tokens) f.missing("max_tokens");
      [[fallthrough]];
    case EngineApi::kCountTokens:
      conversation(f, fields, "messages", "system", out);
      break;
    case EngineApi::kResponses:
      conversation(f, fields, "input", "instructions", out);
      break;
    case EngineApi::kTokenize:
      if (last_member(fields, "prompt", prompt) && prompt.is_string())
        tokenize(prompt.get_string().value_unsafe(), out.add_prompt());
      else if (last_member(fields, "messages", prompt))
        conversation(f, fields, "messages", "", out);
      else
        f.missing("prompt");
      break;
    case EngineApi::kCompletions:
      take("prompt");
      if (!f.error && out.prompt_count == 0)
        f.refuse(bad_request("Either prompt or prompt_embeds must be provided and non-empty."));
      break;
    case EngineApi::kEmbeddings:
      if (!take("input")) f.missing("input");
      break;
    case EngineApi::kGenerate:
      if (!take("token_ids")) f.missing("token_ids");
      if (fields["sampling_params"].error() != simdjson::SUCCESS) f.missing("sampling_params");
      break;
    case EngineApi::kDetokenize:
      if (!last_member(fields, "tokens", prompt) || !prompt.is_array())
        f.missing("tokens");
      else
        token_list(f, "tokens", prompt.get_array().value_unsafe(), out.add_prompt());
      break;
    case EngineApi::kLoadAdapter:
    case EngineApi::kUnloadAdapter:
      break;
  }
  if (!out.echo) out.echo_text.clear();
  return f.error;
}

}  // namespace penstock::simulator
