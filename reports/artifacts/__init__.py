"""One module an artifact; each exports ARTIFACT."""
