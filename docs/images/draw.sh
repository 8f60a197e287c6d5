#!/usr/bin/env bash
# Draws the pictures of the documentation with the program itself: draw.sh COMMAND FOLDER. A test compares them with those in
# the tree, so a picture cannot outlive a change of what it shows.
set -euo pipefail
stagecraft=$1
folder=$2
mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

draw() {  # draw FILE NAME [OPTION...]
  local file=$1 name=$2
  shift 2
  "$stagecraft" schedule "$name" --ranks 4 --microbatches 8 "$@" --format csv -o "$scratch/$name.csv"
  "$stagecraft" show "$scratch/$name.csv" --format svg -o "$folder/$file.svg"
}

draw 1f1b 1F1B
draw zbv ZBVZeroBubble
draw dualpipev DualPipeV
draw 1f1b-lowered 1F1B --passes send_recv,place_receives
