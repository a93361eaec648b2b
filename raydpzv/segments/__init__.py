"""How runs that broke off go on: where legs under the wall clock begin, and how many went on from one place."""
