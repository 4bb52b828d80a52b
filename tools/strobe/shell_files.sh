# SPDX-License-Identifier: Apache-2.0
# Writes what is installed beside the program: sh -e shell_files.sh PROGRAM FOLDER
program=$1 folder=$2
for shell in bash fish zsh; do
  "$program" completion $shell >"$folder/strobe.$shell"
done
"$program" manual >"$folder/strobe.1"
gzip --best --no-name --force --keep "$folder/strobe.1"
