"""The pipeline that made the bundled model: data, codec, language model, export, evaluation. `python -m gateway.training --help`."""
