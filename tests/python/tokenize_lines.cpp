// SPDX-License-Identifier: Apache-2.0
//
// Test program for tokenizer_check.py: reads lines of JSON {"text": ..., "special": true|false}
// from standard input and writes for each a line {"ids": [...], "text": ...} with the ids and what
// they decode to (ill-formed bytes replaced).
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/error.h"
#include "runtime/tokenizer.h"
#include "runtime/unicode.h"

int main(int argc, char** argv) {
  namespace rt = leapquant::runtime;
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines FOLDER_WITH_TOKENIZER_JSON < lines.jsonl\n";
    return 2;
  }
  try {
    const rt::Tokenizer tokenizer = rt::Tokenizer::load(argv[1]);
    std::string line;
    while (std::getline(std::cin, line)) {
      const nlohmann::json request = nlohmann::json::parse(line);
      const auto ids =
          tokenizer.encode(request.at("text").get<std::string>(), request.at("special").get<bool>()
                                                                      ? rt::SpecialTokens::kMatch
                                                                      : rt::SpecialTokens::kAsText);
      rt::StreamDecoder decoder(tokenizer);
      std::string text;
      for (const rt::TokenId id : ids) text += decoder.push(id);
      text += decoder.finish();
      std::cout << nlohmann::json{{"ids", ids}, {"text", rt::replace_invalid_utf8(text)}} << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << "tokenize_lines: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
