// The scalar set: the definition of the numerics, and the free functions that have one implementation.

#include "src/kernels/set.hpp"
#include "src/kernels/vec_scalar.hpp"

namespace samara::kernels {

constinit const KernelTable kScalarTable =
    make_table<ScalarVec, scalar::integer_matmul, scalar::integer_matmul>("scalar");

float dot_definition(const float* a, const float* b, int n) {
    auto sums = ScalarVec::zero();
    for_each_vector<ScalarVec>(n, [&](auto load, auto) { sums = ScalarVec::fma(load(a), load(b), sums); });
    return ScalarVec::tree_sum(sums);
}

void route(const float* logits, int experts, int k, uint16_t* chosen, float* weights) {
    // Insertion into the k best so far; only a strictly larger logit passes an earlier one, so ties keep index order.
    int found = 0;
    for (int e = 0; e < experts; ++e) {
        if (found == k && !(logits[e] > weights[k - 1])) continue;
        int at = found < k ? found++ : k - 1;
        for (; at > 0 && logits[e] > weights[at - 1]; --at) {
            weights[at] = weights[at - 1];
            chosen[at] = chosen[at - 1];
        }
        weights[at] = logits[e];
        chosen[at] = static_cast<uint16_t>(e);
    }
    // The softmax over all experts, renormalised over the chosen, is the softmax over the chosen.
    const float max = weights[0];
    for (int i = 0; i < found; ++i) weights[i] -= max;
    exp_all<ScalarVec>(weights, found, weights);
    float sum = 0;
    for (int i = 0; i < found; ++i) sum += weights[i];
    for (int i = 0; i < found; ++i) weights[i] /= sum;
}

}  // namespace samara::kernels
