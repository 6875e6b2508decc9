#pragma once
// `samara pull`: downloads a published model file. The only part of Samara that opens a network connection; the engine
// library does not link it.

namespace samara::pull {

/// Runs the command with its own arguments (argv[0] is the command's name). Returns the process's exit code: 0 done,
/// 1 failed (the reason is on standard error, or in the last JSON event), 2 wrong usage, 130 stopped by Ctrl-C or
/// SIGTERM, which keeps what was downloaded. Never throws. Not for two threads at once: it handles signals meanwhile.
int pull_main(int argc, char** argv);

}  // namespace samara::pull
