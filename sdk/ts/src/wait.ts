/** Milliseconds on the clock that nobody sets. */
export function now(): number {
  return performance.now();
}

/** Waits; false if the signal was aborted first. */
export function pause(ms: number, signal?: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve(false);
    const aborted = () => {
      clearTimeout(timer);
      resolve(false);
    };
    // A timer of more than 24 days would end at once.
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve(true);
    }, Math.min(ms, 2 ** 31 - 1));
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/**
 * A random delay up to `first`, doubling with each try up to `most` (full
 * jitter): those who failed together do not come back together.
 */
export function backoff(tries: number, first: number, most: number): number {
  return Math.random() * Math.min(first * 2 ** Math.min(tries, 30), most) + 0.001;
}

/** Something that happens once. Unlike a promise it keeps nothing of those who no longer listen. */
export class Latch {
  private happened = false;
  private readonly listeners = new Set<() => void>();

  get fired(): boolean {
    return this.happened;
  }

  fire(): void {
    this.happened = true;
    for (const listener of [...this.listeners]) listener();
    this.listeners.clear();
  }

  /** Calls back when it happens, at once if it has, unless the function it returns is called before. */
  on(listener: () => void): () => void {
    if (this.happened) listener();
    else this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** Waits for it; false if it takes longer. */
  within(ms: number): Promise<boolean> {
    const giveUp = new AbortController();
    let happened = this.happened;
    const forget = this.on(() => {
      happened = true;
      giveUp.abort();
    });
    return pause(Math.max(ms, 0), giveUp.signal).then(() => {
      forget();
      return happened;
    });
  }
}
