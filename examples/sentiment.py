"""A model of your own: `stoker serve -c sample-configs/python.yaml` in the folder that holds `examples`."""


class Sentiment:
    task = "classify"  # what it is for: embed, classify, rerank or generate
    example = "a good day"  # an input that must be answered before it is ready; may be left out

    def load(self, args):  # once a replica; args: the engine arguments of the config
        self.good = set(args.get("good", "good great").split())
        self.bad = set(args.get("bad", "bad awful").split())

    def forward(self, rows):  # inputs of requests that share this forward; one output a row
        return [self.judge(text.lower().split()) for text in rows]

    def judge(self, words):
        if not words:
            raise ValueError("expected at least one word")
        good = 1 + sum(word in self.good for word in words)
        bad = 1 + sum(word in self.bad for word in words)
        return {"positive": good / (good + bad), "negative": bad / (good + bad)}
