// A decode step allocates nothing: this program counts every call of the C allocator, which operator new uses too.

#include <dlfcn.h>

#include <atomic>

#include "samara/samara.h"
#include "tests/engine_models.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

template <class Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void count() {
    if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
}

}  // namespace

// The C library's own allocator under names that an executable may replace.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
    count();
    return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
    count();
    return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
    count();
    return __libc_memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
    count();
    *out = __libc_memalign(alignment, n);
    return *out == nullptr ? 12 : 0;
}
void* mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    static const auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
    count();
    return real(address, length, protection, flags, fd, offset);
}
}

namespace samara {
namespace {

using testing::add;
using testing::prompt;
using testing::synthetic_model;

constexpr int kPrompt = 120;  // so that the steps pass position 128, where a new page begins
constexpr int kSteps = 20;

template <class Body>
int allocations_of(Body&& body) {
    allocations = 0;
    counting = true;
    body();
    counting = false;
    return allocations.load();
}

TEST(Allocation, IsCounted) {
    void* volatile p = nullptr;
    const int counted = allocations_of([&] {
        p = malloc(16);
        free(p);
        p = ::operator new(16);
        ::operator delete(p);
    });
    EXPECT_EQ(counted, 2);
}

class DecodeStep : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(DecodeStep, OfTheCppInterfaceAllocatesNothing) {
    const auto engine = testing::load(synthetic_model(GetParam().first, GetParam().second));
    for (const size_t sessions : {size_t{1}, size_t{2}}) {
        std::vector<std::unique_ptr<Session>> s;
        for (size_t i = 0; i < sessions; ++i) {
            s.push_back(engine->create_session());
            add(*s.back(), prompt(kPrompt, engine->info().vocab, i));
        }
        Sampling sampling;
        sampling.temperature = 1;
        sampling.top_k = 20;
        sampling.top_p = 0.95F;
        sampling.repetition_penalty = 1.1F;
        Sampler sampler(sampling);
        std::vector<int32_t> tokens(sessions);
        const auto decode = [&](int steps) {
            for (int n = 0; n < steps; ++n) {
                StepInput inputs[2];
                for (size_t i = 0; i < sessions; ++i) {
                    tokens[i] = sampler.choose(s[i]->logits());
                    inputs[i] = {s[i].get(), std::span(tokens).subspan(i, 1), LogitsWanted::kLast, nullptr};
                }
                StepParams step;
                step.inputs = std::span(inputs, sessions);
                engine->step(step);
            }
        };
        decode(2);
        EXPECT_EQ(allocations_of([&] { decode(kSteps); }), 0) << sessions << " sessions";
    }
}

TEST_P(DecodeStep, OfAnAnswerAllocatesNothingWithDraftsOrWithout) {
    const auto engine = testing::load(synthetic_model(GetParam().first, GetParam().second));
    for (const Speculation mode : {Speculation::kOff, Speculation::kAlways}) {
        const auto session = engine->create_session();
        add(*session, prompt(kPrompt, engine->info().vocab));
        Sampling sampling;
        sampling.repetition_penalty = 0.65F;  // recent tokens are favoured: the text repeats
        Sampler sampler(sampling);
        GenerateParams p;
        p.sampler = &sampler;
        p.speculation = mode;
        uint32_t drafted = 0;
        const auto answer = [&](uint32_t tokens) {
            p.max_tokens = tokens;
            return allocations_of([&] { drafted = generate(*session, p).drafted; });
        };
        answer(2);
        const int begin = answer(2);
        EXPECT_EQ(answer(60), begin);
        EXPECT_EQ(drafted > 0, mode != Speculation::kOff);
    }
}

TEST_P(DecodeStep, OfTheCInterfaceAllocatesNothing) {
    const std::string& path = synthetic_model(GetParam().first, GetParam().second);
    samara_load_params load{};
    load.struct_size = sizeof load;
    load.path = path.c_str();
    load.threads = 2;
    samara_engine* engine = nullptr;
    ASSERT_EQ(samara_load(&load, &engine), SAMARA_OK) << samara_last_error();
    samara_sampling greedy{};
    greedy.struct_size = sizeof greedy;
    samara_sampler* sampler = nullptr;
    ASSERT_EQ(samara_sampler_create(&greedy, &sampler), SAMARA_OK);
    samara_session* sessions[2] = {};
    const auto tokens = prompt(kPrompt, 2048);
    samara_step_input inputs[2] = {};
    samara_step_params step{};
    step.struct_size = sizeof step;
    step.inputs = inputs;
    step.on_progress = [](uint64_t, uint64_t, void*) { return 1; };
    step.on_logits = [](uint32_t, uint32_t, const float*, void*) {};
    for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(samara_session_create(engine, &sessions[i]), SAMARA_OK);
        inputs[i] = {sizeof(samara_step_input), sessions[i], tokens.data(), kPrompt, SAMARA_LOGITS_LAST, nullptr};
    }
    step.input_count = 2;
    ASSERT_EQ(samara_step(engine, &step), SAMARA_OK) << samara_last_error();
    for (const uint32_t count : {1U, 2U}) {
        int failures = 0;
        const auto decode = [&](int steps) {
            for (int n = 0; n < steps; ++n) {
                int32_t next[2];
                for (uint32_t i = 0; i < count; ++i) {
                    const float* logits = nullptr;
                    failures += samara_session_logits(sessions[i], &logits) != SAMARA_OK;
                    failures += samara_sampler_choose(sampler, logits, 2048, &next[i]) != SAMARA_OK;
                    inputs[i] = {sizeof(samara_step_input), sessions[i], &next[i], 1, SAMARA_LOGITS_ALL, nullptr};
                }
                step.input_count = count;
                failures += samara_step(engine, &step) != SAMARA_OK;
            }
        };
        decode(2);
        EXPECT_EQ(allocations_of([&] { decode(kSteps); }), 0) << count << " sessions";
        EXPECT_EQ(failures, 0) << samara_last_error();
    }
    for (samara_session* s : sessions) samara_session_free(s);
    samara_sampler_free(sampler);
    samara_free(engine);
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeStep,
                         ::testing::Values(std::pair{"maple-tiny", "tq2_0"}, std::pair{"llama-tiny", "q4_1"},
                                           std::pair{"llama-tiny", "f16"}),
                         [](const auto& i) { return std::string(i.param.first).substr(0, 5) + i.param.second; });

}  // namespace
}  // namespace samara
