"""One communication round: selection, assignments, engines, links, client tables and traffic."""
