"""The register of the paper's claims: each a statement, where it stands, and a test in code on the runs at hand."""
