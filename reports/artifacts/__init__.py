"""One module per artifact, or per family of artifacts; `reports.registry` lists them."""
