"""Every block of code in README.md and docs/ is carried out, against a stack of its own, in the
order of the page.

- `console`: what follows `$ ` is typed into one shell a page, and has to end with 0. Lines below it
  are what it prints: `...` stands for anything, numbers for any number, and an id for any id of its
      kind, which later commands of the page then mean by it.
- `python`: run in one namespace a page; a program that serves for ever, in the background until the
  page ends.
- `yaml`, `json`: read; what begins with `# NAME.yaml` is put there for the commands; what belongs
  to a specification makes a valid one.
- `snakemake`: a file, put there for the commands; `text`: shown only. What lies in docs/examples is
  there, too.

Pages say 8642 and 8000 where the stack and a program have other ports here. What needs a container
engine, would stay in the foreground, or writes into the checkout (`python -m bench`) is not carried
out: the commands of `make` have to exist, and the files of containers have tests of their own
(`tests/deploy`).
"""
