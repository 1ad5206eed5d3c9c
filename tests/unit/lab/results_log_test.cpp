// SPDX-License-Identifier: Apache-2.0
//
// The file that lets an evaluation continue.
#include "lab/results_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/error.h"

namespace leapquant::lab {
namespace {

PromptResult result_of(const std::string& id, const std::string& state) {
  PromptResult result;
  result.model = "0123456789abcdef";
  result.tier = "medium";
  result.task = "add";
  result.id = id;
  result.digest = "fedcba9876543210";
  result.state = state;
  result.right = true;
  result.has_kl = true;
  result.kl_sum = 0.1;
  result.loss_sum = 0.3;
  result.kl_tokens = 7;
  result.tokens = 9;
  result.seconds = 0.25;
  return result;
}

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".csv");
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::filesystem::path path_;
};

TEST_F(Log, ReadsBackWhatItWrote) {
  const PromptResult mixed = result_of("a \"b\", c", "mix(int8+@0-1,int4-compact)");
  {
    ResultsLog log(path_);
    log.append({mixed, result_of("x", "int8")});
  }
  const ResultsLog log(path_);
  const PromptResult* found = log.find(mixed, true);
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->right);
  EXPECT_EQ(found->kl_sum, 0.1);  // 17 digits keep every FP64 value
  EXPECT_EQ(found->loss_sum, 0.3);
  EXPECT_EQ(found->kl_tokens, 7);
  EXPECT_EQ(found->tokens, 9);
  EXPECT_EQ(found->seconds, 0.25);
  EXPECT_EQ(log.find(result_of("x", "int4"), false), nullptr);
}

TEST_F(Log, AResultWithoutKlDoesNotCountWhereKlIsNeeded) {
  PromptResult plain = result_of("x", "int8");
  plain.has_kl = false;
  {
    ResultsLog log(path_);
    log.append({plain});
  }
  const ResultsLog log(path_);
  EXPECT_EQ(log.find(plain, true), nullptr);
  EXPECT_NE(log.find(plain, false), nullptr);
}

TEST_F(Log, RemovesALineThatWasCutOff) {
  {
    ResultsLog log(path_);
    log.append({result_of("x", "int8")});
  }
  const std::string whole = text();
  std::ofstream(path_, std::ios::app) << "0123456789abcdef,medium,ad";
  {
    ResultsLog log(path_);
    EXPECT_NE(log.find(result_of("x", "int8"), true), nullptr);
  }
  EXPECT_EQ(text(), whole);
}

TEST_F(Log, RefusesForeignAndBrokenFilesAndLeavesThem) {
  for (const std::string content :
       {"a,b\n1,2\n", "no line break", "model,tier\n",
        "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds\nonly,"
        "three,"
        "fields\n",
        "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds\n"
        "m,t,k,i,d,s,2,0,0,0,0,0\n",
        "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds\n"
        "m,t,k,i,d,s,1,0,0,-1,0,0\n",
        "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds\n"
        "m,t,k,i,d,s,1,0,0,0,-1,0\n",
        "model,tier,task,id,digest,state,right,kl_sum,loss_sum,kl_tokens,tokens,seconds\n"
        "m,t,k,i,d,s,1,0,0,0,0,-0.5\n"}) {
    std::ofstream(path_, std::ios::trunc) << content;
    EXPECT_THROW(ResultsLog{path_}, runtime::Error) << content;
    EXPECT_EQ(text(), content);
  }
}

TEST_F(Log, WithoutAFileItKeepsResultsInMemory) {
  ResultsLog log;
  log.append({result_of("x", "int8")});
  EXPECT_NE(log.find(result_of("x", "int8"), true), nullptr);
}

TEST_F(Log, AFullDiskIsAnError) { EXPECT_THROW(ResultsLog("/dev/full"), runtime::Error); }

}  // namespace
}  // namespace leapquant::lab
