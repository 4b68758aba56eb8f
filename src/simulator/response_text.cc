#include "simulator/response_text.h"

#include <charconv>
#include <cmath>

#include "base/strings.h"

namespace penstock::simulator {
namespace {

void number(std::string& out, int64_t value) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, end);
}

// The value behind what is written before it.
void number(std::string& out, std::string_view before, int64_t value) {
  out += before;
  number(out, value);
}

void quoted(std::string& out, std::string_view before, std::string_view value) {
  out += before;
  append_json_quoted(out, value);
}

// As Python writes a float: with a fraction.
void real(std::string& out, double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  const std::string_view written(text, static_cast<size_t>(end - text));
  out += written;
  if (written.find_first_of(".en") == std::string_view::npos) out += ".0";
}

void tokens_or_null(std::string& out, std::string_view before, bool wanted,
                    std::span<const uint32_t> tokens) {
  out += before;
  if (!wanted) {
    out += "null";
    return;
  }
  out += '[';
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    number(out, tokens[i]);
  }
  out += ']';
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "\"stop\"";
    case FinishReason::kLength:
      return "\"length\"";
    case FinishReason::kAbort:
      return "\"abort\"";
    case FinishReason::kError:
      return "\"error\"";
    case FinishReason::kNone:
      break;
  }
  return "null";
}

void stop_or_null(std::string& out, std::string_view before, std::string_view stop) {
  out += before;
  if (stop.empty())
    out += "null";
  else
    append_json_quoted(out, stop);
}

void usage_counts(std::string& out, const Usage& usage) {
  number(out, "{\"prompt_tokens\":", usage.prompt_tokens);
  number(out, ",\"total_tokens\":", usage.prompt_tokens + static_cast<int64_t>(usage.completion_tokens));
  number(out, ",\"completion_tokens\":", usage.completion_tokens);
}

bool counts_created(EngineApi api) {
  return api == EngineApi::kChat;
}

// Usage of a whole answer: nulls are written.
void unary_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  usage_counts(out, usage);
  out += ",\"prompt_tokens_details\":";
  if (context.prompt_tokens_details) {
    number(out, "{\"cached_tokens\":", usage.cached_tokens);
    out += ",\"created_cache_tokens\":";
    if (counts_created(context.api))
      number(out, usage.created_cache_tokens);
    else
      out += "null";
    out += ",\"multimodal_tokens\":null}";
  } else {
    out += "null";
  }
  out += ",\"completion_tokens_details\":null}";
}

// Usage of a stream's own usage event: nulls are left out.
void final_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  usage_counts(out, usage);
  if (context.prompt_tokens_details) {
    number(out, ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens);
    if (counts_created(context.api)) {
      number(out, ",\"created_cache_tokens\":", usage.created_cache_tokens);
    }
    out += '}';
  }
  out += '}';
}

void running_usage(std::string& out, const ResponseContext& context, const Usage& usage) {
  if (!context.continuous_usage) return;
  out += ",\"usage\":";
  usage_counts(out, usage);
  out += ",\"completion_tokens_details\":null}";
}

void fingerprint(std::string& out, const ResponseContext& context) {
  quoted(out, ",\"system_fingerprint\":", context.fingerprint);
}

void head(std::string& out, const ResponseContext& context, std::string_view object) {
  quoted(out, "{\"id\":", context.id);
  out += ",\"object\":\"";
  out += object;
  number(out, "\",\"created\":", context.created);
  quoted(out, ",\"model\":", context.model);
}

void event_head(std::string& out, const ResponseContext& context, std::string_view object) {
  out += "data: ";
  head(out, context, object);
}

// --- chat and completions ---

void chat_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                   const Usage& usage) {
  head(out, context, "chat.completion");
  out += ",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    number(out, "{\"index\":", choice.index);
    quoted(out, ",\"message\":{\"role\":\"assistant\",\"content\":", choice.text);
    out +=
        ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},"
        "\"logprobs\":null,\"finish_reason\":";
    out += finish_name(choice.finish);
    stop_or_null(out, ",\"stop_reason\":", choice.stop);
    tokens_or_null(out, ",\"token_ids\":", context.return_token_ids, choice.tokens);
    out += ",\"routed_experts\":null}";
  }
  out += "],\"service_tier\":null";
  fingerprint(out, context);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  tokens_or_null(out, ",\"prompt_logprobs\":null,\"prompt_token_ids\":", context.return_token_ids,
                 context.prompt_tokens);
  out += ",\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

void completion_response(std::string& out, const ResponseContext& context,
                         std::span<const ChoiceText> choices, const Usage& usage) {
  head(out, context, "text_completion");
  out += ",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    number(out, "{\"index\":", choice.index);
    quoted(out, ",\"text\":", choice.text);
    out += ",\"logprobs\":null,\"finish_reason\":";
    out += finish_name(choice.finish);
    stop_or_null(out, ",\"stop_reason\":", choice.stop);
    tokens_or_null(out, ",\"token_ids\":", context.return_token_ids, choice.tokens);
    tokens_or_null(out, ",\"prompt_logprobs\":null,\"prompt_token_ids\":", context.return_token_ids,
                   context.prompt_tokens);
    out += ",\"routed_experts\":null}";
  }
  out += "],\"service_tier\":null";
  fingerprint(out, context);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  out += ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

void chat_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                const Usage& usage) {
  event_head(out, context, "chat.completion.chunk");
  number(out, ",\"choices\":[{\"index\":", choice.index);
  quoted(out, ",\"delta\":{\"content\":", choice.text);
  out += "},\"logprobs\":null,\"finish_reason\":";
  out += finish_name(choice.finish);
  if (choice.finish != FinishReason::kNone) {
    stop_or_null(out, ",\"stop_reason\":", choice.stop);
  }
  tokens_or_null(out, ",\"token_ids\":", context.return_token_ids, choice.tokens);
  out += "}]";
  running_usage(out, context, usage);
  if (choice.finish != FinishReason::kNone && !context.include_usage) fingerprint(out, context);
  out += "}\n\n";
}

void completion_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                      const Usage& usage) {
  event_head(out, context, "text_completion");
  number(out, ",\"choices\":[{\"index\":", choice.index);
  quoted(out, ",\"text\":", choice.text);
  out += ",\"logprobs\":null,\"finish_reason\":";
  out += finish_name(choice.finish);
  stop_or_null(out, ",\"stop_reason\":", choice.stop);
  tokens_or_null(out, ",\"prompt_token_ids\":null,\"token_ids\":", context.return_token_ids, choice.tokens);
  out += "}]";
  running_usage(out, context, usage);
  if (choice.finish != FinishReason::kNone && !context.include_usage) fingerprint(out, context);
  out += "}\n\n";
}

// --- /inference/v1/generate ---

void generate_choice(std::string& out, const ChoiceText& choice, uint32_t total, bool ended) {
  number(out, "{\"index\":", choice.index);
  out += ",\"finish_reason\":";
  out += finish_name(choice.finish);
  stop_or_null(out, ",\"stop_reason\":", choice.stop);
  tokens_or_null(out, ",\"token_ids\":", true, choice.tokens);
  out += ",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":";
  if (ended) {
    number(out, "[{\"version\":\"default\",\"start\":0,\"end\":", total);
    out += "}]";
  } else {
    out += "null";
  }
  out += ",\"logprobs\":null}";
}

void generate_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                       const Usage& usage) {
  quoted(out, "{\"request_id\":", context.id);
  quoted(out, ",\"model\":", context.model);
  number(out, ",\"created\":", context.created);
  out += ",\"usage\":";
  unary_usage(out, context, usage);
  out +=
      ",\"prompt_logprobs\":null,\"prompt_token_id_logprobs\":null,\"prompt_token_ids\":null,"
      "\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,"
      "\"output_mode\":\"tokens\",\"choices\":[";
  for (const ChoiceText& choice : choices) {
    if (&choice != choices.data()) out += ',';
    generate_choice(out, choice, static_cast<uint32_t>(choice.tokens.size()), true);
  }
  out += "]}";
}

void generate_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                    const Usage& usage) {
  quoted(out, "data: {\"request_id\":", context.id);
  out += ",\"usage\":null,\"output_mode\":\"tokens\",\"choices\":[";
  generate_choice(out, choice, usage.completion_tokens, choice.finish != FinishReason::kNone);
  out += "]}\n\n";
}

// --- /v1/messages ---

std::string_view anthropic_stop(const ChoiceText& choice) {
  if (!choice.stop.empty()) return "\"stop_sequence\"";
  return choice.finish == FinishReason::kLength ? "\"max_tokens\"" : "\"end_turn\"";
}

void messages_usage(std::string& out, const Usage& usage) {
  number(out, "{\"input_tokens\":", usage.prompt_tokens);
  number(out, ",\"output_tokens\":", usage.completion_tokens);
  number(out, ",\"cache_creation_input_tokens\":", usage.created_cache_tokens);
  number(out, ",\"cache_read_input_tokens\":", usage.cached_tokens);
  out += '}';
}

void messages_response(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                       const Usage& usage) {
  quoted(out, "{\"id\":", context.id);
  quoted(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":",
         choice.text);
  quoted(out, "}],\"model\":", context.model);
  out += ",\"stop_reason\":";
  out += anthropic_stop(choice);
  if (!choice.stop.empty()) {
    quoted(out, ",\"stop_sequence\":", choice.stop);
  }
  out += ",\"usage\":";
  messages_usage(out, usage);
  out += '}';
}

void messages_start(std::string& out, const ResponseContext& context, const Usage& usage) {
  quoted(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":", context.id);
  quoted(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":", context.model);
  number(out,
         ",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":", usage.prompt_tokens);
  out +=
      ",\"output_tokens\":0}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\","
      "\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n";
}

void messages_delta(std::string& out, const ChoiceText& choice) {
  quoted(out,
         "event: content_block_delta\ndata: "
         "{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\","
         "\"text\":",
         choice.text);
  out += "},\"index\":0}\n\n";
}

void messages_end(std::string& out, const ChoiceText& choice, const Usage& usage) {
  out +=
      "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":";
  out += anthropic_stop(choice);
  stop_or_null(out, ",\"stop_sequence\":", choice.stop);
  out += "},\"usage\":";
  messages_usage(out, usage);
  out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
}

// --- /v1/responses ---

void responses_item(std::string& out, const ResponseContext& context, std::string_view text) {
  quoted(out, "{\"id\":", context.item_id);
  quoted(out, ",\"content\":[{\"annotations\":[],\"text\":", text);
  out +=
      ",\"type\":\"output_text\",\"logprobs\":null}],\"role\":\"assistant\",\"status\":\"completed\","
      "\"type\":\"message\",\"phase\":null}";
}

void responses_object(std::string& out, const ResponseContext& context, const ChoiceText* choice,
                      const Usage& usage) {
  const bool cut = choice != nullptr && choice->finish == FinishReason::kLength;
  quoted(out, "{\"id\":", context.id);
  number(out, ",\"created_at\":", context.created);
  out += ",\"incomplete_details\":";
  out += cut ? "{\"reason\":\"max_output_tokens\"}" : "null";
  quoted(out, ",\"instructions\":null,\"metadata\":null,\"model\":", context.model);
  out += ",\"object\":\"response\",\"output\":[";
  if (choice != nullptr) responses_item(out, context, choice->text);
  out += "],\"parallel_tool_calls\":true,\"temperature\":";
  real(out, context.temperature);
  out += ",\"tool_choice\":\"none\",\"tools\":[],\"top_p\":";
  real(out, context.top_p);
  number(out, ",\"background\":false,\"max_output_tokens\":", context.max_tokens);
  out += ",\"max_tool_calls\":null,\"previous_response_id\":";
  if (context.previous_response_id.empty())
    out += "null";
  else
    quoted(out, "", context.previous_response_id);
  out += ",\"prompt\":null,\"reasoning\":null,\"service_tier\":\"auto\",\"status\":";
  out += choice == nullptr ? "\"in_progress\"" : (cut ? "\"incomplete\"" : "\"completed\"");
  out += ",\"text\":null,\"top_logprobs\":null,\"truncation\":\"disabled\",\"usage\":";
  if (choice == nullptr) {
    out += "null";
  } else {
    number(out, "{\"input_tokens\":", usage.prompt_tokens);
    number(out, ",\"input_tokens_details\":{\"cached_tokens\":", usage.cached_tokens);
    number(out,
           ",\"cache_write_tokens\":0,\"input_tokens_per_turn\":[],\"cached_tokens_per_turn\":[]},"
           "\"output_tokens\":",
           usage.completion_tokens);
    number(out,
           ",\"output_tokens_details\":{\"reasoning_tokens\":0,\"tool_output_tokens\":0,"
           "\"output_tokens_per_turn\":[],\"tool_output_tokens_per_turn\":[]},\"total_tokens\":",
           usage.prompt_tokens + static_cast<int64_t>(usage.completion_tokens));
    out += '}';
  }
  out +=
      ",\"user\":null,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,\"kv_transfer_params\":null,"
      "\"ec_transfer_params\":null,\"input_messages\":null,\"output_messages\":null}";
}

void responses_tail(std::string& out, std::string_view type, uint32_t sequence) {
  number(out, ",\"sequence_number\":", sequence);
  out += ",\"type\":\"";
  out += type;
  out += "\"}\n\n";
}

void responses_event(std::string& out, std::string_view type) {
  out += "event: ";
  out += type;
  out += "\ndata: {";
}

void responses_start(std::string& out, const ResponseContext& context, const Usage& usage) {
  uint32_t sequence = 0;
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    responses_event(out, type);
    out += "\"response\":";
    responses_object(out, context, nullptr, usage);
    responses_tail(out, type, sequence++);
  }
  responses_event(out, "response.output_item.added");
  quoted(out, "\"item\":{\"id\":", context.item_id);
  out +=
      ",\"content\":[],\"role\":\"assistant\",\"status\":\"in_progress\",\"type\":\"message\",\"phase\":null}"
      ","
      "\"output_index\":0";
  responses_tail(out, "response.output_item.added", sequence++);
  responses_event(out, "response.content_part.added");
  quoted(out, "\"content_index\":0,\"item_id\":", context.item_id);
  out +=
      ",\"output_index\":0,\"part\":{\"annotations\":[],\"text\":\"\",\"type\":\"output_text\",\"logprobs\":["
      "]}";
  responses_tail(out, "response.content_part.added", sequence);
}

void responses_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                     uint32_t& sequence) {
  responses_event(out, "response.output_text.delta");
  quoted(out, "\"content_index\":0,\"delta\":", choice.text);
  quoted(out, ",\"item_id\":", context.item_id);
  out += ",\"logprobs\":[],\"output_index\":0";
  responses_tail(out, "response.output_text.delta", sequence++);
}

void responses_end(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                   const Usage& usage, uint32_t& sequence) {
  responses_event(out, "response.output_text.done");
  quoted(out, "\"content_index\":0,\"item_id\":", context.item_id);
  number(out, ",\"logprobs\":[],\"output_index\":0,\"sequence_number\":", sequence++);
  quoted(out, ",\"text\":", choice.text);
  out += ",\"type\":\"response.output_text.done\"}\n\n";

  responses_event(out, "response.content_part.done");
  quoted(out, "\"content_index\":0,\"item_id\":", context.item_id);
  quoted(out, ",\"output_index\":0,\"part\":{\"annotations\":[],\"text\":", choice.text);
  out += ",\"type\":\"output_text\",\"logprobs\":null}";
  responses_tail(out, "response.content_part.done", sequence++);

  responses_event(out, "response.output_item.done");
  out += "\"item\":";
  responses_item(out, context, choice.text);
  out += ",\"output_index\":0";
  responses_tail(out, "response.output_item.done", sequence++);

  responses_event(out, "response.completed");
  out += "\"response\":";
  responses_object(out, context, &choice, usage);
  responses_tail(out, "response.completed", sequence++);
}

}  // namespace

void append_response(std::string& out, const ResponseContext& context, std::span<const ChoiceText> choices,
                     const Usage& usage) {
  switch (context.api) {
    case EngineApi::kCompletions:
      return completion_response(out, context, choices, usage);
    case EngineApi::kMessages:
      return messages_response(out, context, choices.front(), usage);
    case EngineApi::kResponses:
      return responses_object(out, context, &choices.front(), usage);
    case EngineApi::kGenerate:
      return generate_response(out, context, choices, usage);
    default:
      return chat_response(out, context, choices, usage);
  }
}

void append_stream_start(std::string& out, const ResponseContext& context, uint32_t choices,
                         const Usage& usage) {
  if (context.api == EngineApi::kMessages) return messages_start(out, context, usage);
  if (context.api == EngineApi::kResponses) return responses_start(out, context, usage);
  if (context.api != EngineApi::kChat) return;
  for (uint32_t index = 0; index < choices; ++index) {
    event_head(out, context, "chat.completion.chunk");
    number(out, ",\"choices\":[{\"index\":", index);
    out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
    Usage none = usage;
    none.completion_tokens = 0;
    running_usage(out, context, none);
    tokens_or_null(out, ",\"prompt_token_ids\":", context.return_token_ids, context.prompt_tokens);
    out += ",\"prompt_text\":null}\n\n";
  }
}

void append_stream_delta(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                         const Usage& usage, uint32_t& sequence) {
  switch (context.api) {
    case EngineApi::kCompletions:
      return completion_delta(out, context, choice, usage);
    case EngineApi::kMessages:
      return messages_delta(out, choice);
    case EngineApi::kResponses:
      return responses_delta(out, context, choice, sequence);
    case EngineApi::kGenerate:
      return generate_delta(out, context, choice, usage);
    default:
      return chat_delta(out, context, choice, usage);
  }
}

void append_stream_end(std::string& out, const ResponseContext& context, const ChoiceText& choice,
                       const Usage& usage, uint32_t& sequence) {
  if (context.api == EngineApi::kMessages) return messages_end(out, choice, usage);
  if (context.api == EngineApi::kResponses) return responses_end(out, context, choice, usage, sequence);
  if (context.include_usage && context.api != EngineApi::kGenerate) {
    event_head(out, context, context.api == EngineApi::kChat ? "chat.completion.chunk" : "text_completion");
    out += ",\"choices\":[],\"usage\":";
    final_usage(out, context, usage);
    fingerprint(out, context);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void append_error(std::string& out, EngineApi api, const ApiError& error) {
  if (api == EngineApi::kMessages || api == EngineApi::kCountTokens) {
    quoted(out, "{\"type\":\"error\",\"error\":{\"type\":", error.type);
    quoted(out, ",\"message\":", error.message);
    out += "}}";
    return;
  }
  quoted(out, "{\"error\":{\"message\":", error.message);
  quoted(out, ",\"type\":", error.type);
  out += ",\"param\":";
  if (error.param.empty())
    out += "null";
  else
    append_json_quoted(out, error.param);
  number(out, ",\"code\":", error.status);
  out += "}}";
}

}  // namespace penstock::simulator
