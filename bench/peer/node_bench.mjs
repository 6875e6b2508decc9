// node-llama-cpp's side of the speed bench: node node_bench.mjs PEER_FOLDER MODEL PROMPT_TOKENS GEN_TOKENS THREADS
// Prints one JSON object. The package lives in PEER_FOLDER/node_modules.

import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import path from "node:path";

const [folder, modelPath, promptTokens, genTokens, threads] = process.argv.slice(2);
const require = createRequire(path.join(path.resolve(folder), "package.json"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")));

// The ids that `samara bench` uses.
function benchTokens(count, vocabularySize) {
    let state = 20260801n;
    return Array.from({length: count}, () => {
        state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n);
        return Number((state >> 33n) % BigInt(vocabularySize));
    });
}

async function generate(sequence, first, count) {
    let made = 0;
    // An end-of-turn token is a token like others here: the work is measured, not the text.
    for await (const _ of sequence.evaluate([first], {temperature: 0, yieldEogToken: true})) {
        if (++made === count) break;
    }
    return made;
}

const count = Number(promptTokens);
const generated = Number(genTokens);
let begin = performance.now();
const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, maxThreads: Number(threads), logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({
    contextSize: count + generated + 8, batchSize: Math.min(512, count), threads: Number(threads), sequences: 1
});
const loadMs = performance.now() - begin;
const sequence = context.getSequence();
const prompt = benchTokens(count, model.fileInfo.metadata.tokenizer.ggml.tokens.length);

// The warm-up is the same work: pages, buffers and threads are ready afterwards.
await sequence.evaluateWithoutGeneratingNewTokens(prompt);
await generate(sequence, prompt[0], 4);
await sequence.clearHistory();

begin = performance.now();
await sequence.evaluateWithoutGeneratingNewTokens(prompt);
const prefillMs = performance.now() - begin;
begin = performance.now();
const made = await generate(sequence, prompt[1], generated);
const decodeMs = performance.now() - begin;

console.log(JSON.stringify({
    prefill_tps: count / (prefillMs / 1000),
    decode_tps: made / (decodeMs / 1000),
    load_ms: loadMs,
    system: llama.systemInfo
}));
process.exit(0);
