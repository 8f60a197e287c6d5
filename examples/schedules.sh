#!/usr/bin/env bash
# A tour of the command line: schedules.sh COMMAND FOLDER. Everything it prints and draws is made on the spot.
set -euo pipefail
stagecraft=$1
folder=$2
mkdir -p "$folder"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
  printf '$ stagecraft %s\n' "$*"
  "$stagecraft" "$@"
}

say "The schedules there are, and what each costs"
run list

say "One of them, slot by slot: every rank works without a gap"
run schedule ZB-H2 --ranks 4 --microbatches 8

say "Another one, lowered to messages and proven free of deadlock"
run schedule ZBVZeroBubble --ranks 4 --microbatches 8 --passes unshard_reshard,reduce_grad,send_recv,place_receives \
  --format csv -o "$folder/zbv-lowered.csv"
run check "$folder/zbv-lowered.csv"

say "A schedule that deadlocks where sends block, and why"
run schedule 1F1B --ranks 2 --microbatches 3 --passes send_recv,defer_receives --format csv -o "$folder/deferred.csv"
run check "$folder/deferred.csv" || true

say "Pictures, and a trace for https://ui.perfetto.dev"
for name in 1F1B ZBVZeroBubble DualPipeV V-Half; do
  run schedule "$name" --ranks 4 --microbatches 8 --format csv -o "$folder/$name.csv"
  run show "$folder/$name.csv" --format svg -o "$folder/$name.svg"
done
run show "$folder/zbv-lowered.csv" --format trace -o "$folder/zbv-lowered.trace.json"

say "Done: $folder"
ls "$folder"
