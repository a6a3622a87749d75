# docker build -t cnn-harness .
# docker run --rm cnn-harness --version
# docker run --rm -v cnn-runs:/work cnn-harness train --config quickstart
# docker build --build-arg INSTALL='.[gpu]' -t cnn-harness-gpu .   for NVIDIA cards, which docker run --gpus all gives it
FROM python:3.11-slim

# g++ stays: the kernels are for the processor that they were compiled on, and `kernels` compiles them for another one
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

ARG INSTALL="-r requirements.txt"
COPY . /tmp/source
RUN cd /tmp/source \
    && pip install --no-cache-dir $INSTALL -c constraints.txt \
    && pip install --no-cache-dir --no-deps . \
    && rm -rf /tmp/source

RUN useradd --create-home cnn && mkdir /work && chown cnn /work
USER cnn
RUN cnn kernels
WORKDIR /work
ENTRYPOINT ["cnn"]
